"""Items that did not simply succeed, kept in S3: index, payload, attempts and the last answer of each.

A part is written before the progress that counts it. One that its writer did not live to count is written again by
the next holder of the lease, under the same number and a higher fencing token; so of the parts of one number the one
with the highest token counts, and none beyond the number in the progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidegate.batches.items import Items
from tidegate.batches.model import Batch
from tidegate.batches.rows.objects import RowBucket
from tidegate.batches.run.values import ABANDONED, FAILED, RECOVERED, Outcome
from tidegate.errors import WrongState

# How many parts of each runner count.
Parts = Sequence[int]
STATES = (FAILED, ABANDONED, RECOVERED)
RESULTS_LINK_SECONDS = 3600
# What one API call can merge in its time; a batch that ends merges its own.
_MOST_PARTS_A_CALL = 2000
_READERS = 16


class Outcomes:
    def __init__(self, objects: RowBucket) -> None:
        self._objects = objects

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[Outcome], items: Items
    ) -> None:
        # By index, so that each block of rows is read once for its payloads.
        ordered = sorted(outcomes, key=lambda outcome: outcome.index)
        lines = (json.dumps(_line(outcome, items), separators=(",", ":")) for outcome in ordered)
        self._objects.put(
            f"{_parts(batch, runner)}{part:09d}-{fence:09d}.jsonl", "".join(f"{line}\n" for line in lines).encode()
        )

    def page(
        self, batch: Batch, parts: Parts, state: str | None, limit: int, after: int | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Up to `limit` items by index, and the index to go on after."""
        found: list[dict[str, Any]] = []
        for line in self._lines(batch, parts):
            if after is not None and line["index"] <= after:
                continue
            if state is not None and line["state"] != state:
                continue
            if len(found) == limit:
                return found, int(found[-1]["index"])
            found.append(line)
        return found, None

    def copy_items(self, batch: Batch, parts: Parts, states: Sequence[str], made: Batch) -> int:
        """Writes the items in these states as the items of another batch; says how many."""
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for line in self._lines(batch, parts):
                if line["state"] in states:
                    count += 1
                    yield json.dumps(line, separators=(",", ":")).encode() + b"\n"

        self._objects.stream(redriven_items(made), lines(), "application/jsonl")
        return count

    def merge(self, batch: Batch, parts: Parts) -> str:
        """One JSONL object of all outcomes, by index; made once for each number of parts."""
        key = _merged(batch, parts)
        if self._objects.size(key) is None:
            lines = (json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in self._gather(batch, parts))
            self._objects.stream(key, lines, "application/jsonl")
        return key

    def link(self, batch: Batch, parts: Parts) -> tuple[str, str]:
        """(a presigned URL of the merged outcomes, the file's name)."""
        self._refuse_many(batch, parts)
        name = f"{batch.batch_id}-results.jsonl"
        return self._objects.link(self.merge(batch, parts), RESULTS_LINK_SECONDS, name), name

    def _refuse_many(self, batch: Batch, parts: Parts) -> None:
        if sum(parts) > _MOST_PARTS_A_CALL and self._objects.size(_merged(batch, parts)) is None:
            raise WrongState(
                f"the batch is {batch.status} and has {sum(parts)} parts of outcomes, more than a call can merge; "
                "they are merged when it stops or finishes"
            )

    def _lines(self, batch: Batch, parts: Parts) -> Iterable[dict[str, Any]]:
        """By index; from the merged object if there is one."""
        self._refuse_many(batch, parts)
        key = _merged(batch, parts)
        if self._objects.size(key) is not None:
            return (json.loads(line) for line in self._objects.lines(key))
        return self._gather(batch, parts)

    def _gather(self, batch: Batch, parts: Parts) -> list[dict[str, Any]]:
        """The last outcome of each item: one that failed may have succeeded in a later run."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="outcomes") as pool:
            texts = pool.map(self._objects.get, self._counted(batch, parts))
            last = {line["index"]: line for text in texts for line in map(json.loads, (text or b"").splitlines())}
        return [last[index] for index in sorted(last)]

    def _counted(self, batch: Batch, parts: Parts) -> list[str]:
        return [key for runner, count in enumerate(parts) if count for key in self._of_runner(batch, runner, count)]

    def _of_runner(self, batch: Batch, runner: int, count: int) -> list[str]:
        prefix = _parts(batch, runner)
        chosen: dict[int, str] = {}
        for key in self._objects.keys(prefix):
            # Sorted by name, so that the highest fencing token of a part comes last.
            chosen[int(key.removeprefix(prefix).partition("-")[0])] = key
        return [chosen[part] for part in sorted(chosen) if part <= count]


def _line(outcome: Outcome, items: Items) -> dict[str, Any]:
    fields = items.fields(outcome.index)
    kept = {name: fields[name] for name in ("job_data", "batch_data") if name in fields}
    index = items.name(outcome.index)
    told = {"index": index, "state": outcome.state, "attempts": outcome.attempts, "answer": outcome.answer.shown()}
    return told | kept


def _folder(batch: Batch) -> str:
    return f"batches/{batch.project_id}/{batch.batch_id}/"


def _parts(batch: Batch, runner: int) -> str:
    return f"{_folder(batch)}outcomes-{runner:02d}/" if runner else f"{_folder(batch)}outcomes/"


def _merged(batch: Batch, parts: Parts) -> str:
    return f"{_folder(batch)}results-{sum(parts):09d}.jsonl"


def redriven_items(batch: Batch) -> str:
    """The object that holds the items of a batch made by a redrive."""
    return f"{_folder(batch)}items.ndjson"
