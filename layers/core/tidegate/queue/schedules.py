"""Runs schedules that are due. Shared by the functions that do this once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, zip_longest
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.aws.table import Item, Key, Table

logger = Logger(service="tidegate", child=True)

# Schedules that became due within this many seconds are tried for the first or second time.
_RECENT_SECONDS = 90
_THREADS = 8
# Records held in memory at once.
_CHUNK = 64
# More than one run can fire. The keys of so many take a few megabytes.
_MOST_OF_A_PROJECT = 10_000
_GOLDEN_RATIO = (5**0.5 - 1) / 2
# No schedule is started after this many seconds. The rest stays due, and the function runs again in a minute.
SECONDS = 40.0


def due_items(table: Table, partitions: Sequence[str], now: float) -> Iterator[Item]:
    """The due records of these partitions of the sparse index, one of each project in turn.

    So a project with more due schedules than one run can fire does not delay those of others. Each minute another
    project comes first, so that none waits for ever if one run cannot fire one of each. Within a project,
    recent ones come first, so that schedules that fail again and again do not delay those that can run. All due keys
    are listed first; the records themselves are read as they are needed.
    """
    turns = _in_turns(_rotated(_listed(table, partitions, now), int(now // 60)))
    while some := list(islice(turns, _CHUNK)):
        found = {_place(item): item for item in table.batch_get(some, consistent=True)}
        for key in some:
            item = found.get(_place(key))
            # The index may be behind: it was deleted, paused or run meanwhile.
            if item and item.get("due_pk") in partitions and item["due_at"] <= now:
                yield item


def _listed(table: Table, partitions: Sequence[str], now: float) -> dict[str, list[Key]]:
    """The keys of the records that are due, by project."""
    recent = int(now) - _RECENT_SECONDS
    listed: dict[str, list[Key]] = {}
    for between in ((recent, int(now)), (0, recent - 1)):
        for partition in partitions:
            for item in table.query_all(partition, index="due", sk_between=between, project=("pk", "sk", "project_id")):
                own = listed.setdefault(str(item.get("project_id", "")), [])
                if len(own) < _MOST_OF_A_PROJECT:
                    own.append({"pk": item["pk"], "sk": item["sk"]})
    return listed


def _rotated(listed: Mapping[str, Sequence[Key]], minute: int) -> list[Sequence[Key]]:
    """The keys of each project. The first project is another one each minute.

    Multiples of the golden ratio spread evenly however many projects there are and however many of them one run
    serves: if that is k of n, each project is served within 2n/k minutes. With steps of one project it could take n.
    """
    order = [listed[project_id] for project_id in sorted(listed)]
    first = int(minute * _GOLDEN_RATIO % 1 * len(order))
    return order[first:] + order[:first]


def _in_turns(projects: Sequence[Sequence[Key]]) -> Iterator[Key]:
    for turn in zip_longest(*projects):
        yield from (key for key in turn if key is not None)


def _place(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["pk"], item["sk"]


def fire_all(due: Iterable[Item], fire: Callable[[Item], bool], *, seconds: float = SECONDS) -> int:
    """Tries all of them, several in parallel. Returns how many fired.

    One that fails, even because its record is malformed, is logged and stays due. It does not stop the others.
    """
    ends = time.monotonic() + seconds

    def try_fire(item: Item) -> bool:
        if time.monotonic() >= ends:
            return False
        try:
            return fire(item)
        except Exception:
            logger.exception("a schedule did not fire and will be tried again", record=item.get("pk"))
            return False

    fired, left = 0, iter(due)
    while time.monotonic() < ends and (chunk := list(islice(left, _CHUNK))):
        if len(chunk) == 1:
            fired += try_fire(chunk[0])
            continue
        with ThreadPoolExecutor(_THREADS) as threads:
            fired += sum(threads.map(try_fire, chunk))
    return fired
