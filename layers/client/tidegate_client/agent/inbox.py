"""The agent's open transfers: their progress, and the newest URL of each."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable

from tidegate_client.agent.codes import Code
from tidegate_client.agent.journal import Key
from tidegate_client.download import Cancelled, Stalled
from tidegate_client.models import Transfer, TransferResult

REMEMBERED = 5000
# The API lists at most this many: a transfer that a full list lacks may still be open.
CUT_SHORT, STAGED_CUT_SHORT = 100, 1000
MISSED_UNTIL_GONE = 2


def key_of(item: Transfer | TransferResult) -> Key:
    return item["transfer_id"], item.get("container_id") or ""


def is_cut_short(items: Iterable[Transfer]) -> bool:
    """Whether there may be more than the API listed: it has one limit for what is to be fetched, one for the rest."""
    staged = [bool(item.get("staged_at")) for item in items]
    return staged.count(False) >= CUT_SHORT or staged.count(True) >= STAGED_CUT_SHORT


class Inbox:
    def __init__(self, ask: Callable[[], None] = lambda: None) -> None:
        """`ask` triggers a poll; it is called when a fresh URL is needed."""
        self._ask = ask
        self._changed = threading.Condition()
        self._links: dict[Key, str] = {}
        self._missed: Counter[Key] = Counter()
        self._progress: dict[Key, int] = {}
        self._reported: dict[Key, int] = {}
        # Transfers with a staged file: the result that reports them, and when a poll last listed them.
        self._staged: dict[Key, TransferResult] = {}
        self._staged_reported: set[Key] = set()
        self._listed_at: dict[Key, float] = {}
        self._done: OrderedDict[Key, TransferResult] = OrderedDict()

    def offer(
        self, items: Iterable[Transfer], settled: Callable[[Key], bool]
    ) -> tuple[list[Transfer], list[TransferResult]]:
        """Takes the answer of a poll. Returns new transfers, oldest first, and results that the API seems to have lost.

        `settled` is True for a transfer whose result is in the journal and only has to be reported."""
        new: list[Transfer] = []
        repeat: list[TransferResult] = []
        with self._changed:
            listed = {key_of(item): item for item in items}
            # Read the journal before anything changes: an error must not leave some of the transfers taken.
            over = {key for key in listed if settled(key)}
            for key, item in listed.items():
                if key in over:
                    continue
                if key in self._done:
                    repeat.append(self._done[key])
                    continue
                if key not in self._links:
                    new.append(item)
                    self._progress[key] = 0
                self._links[key] = item["url"]
                self._listed_at[key] = time.time()
            self._note_missing(listed, is_cut_short(listed.values()))
            self._changed.notify_all()
        new.sort(key=lambda item: item.get("sequence") or 0)
        return new, repeat

    def _note_missing(self, listed: Collection[Key], cut_short: bool) -> None:
        for key in self._links:
            if key in listed:
                self._missed.pop(key, None)
            elif not cut_short:
                self._missed[key] += 1

    def hold(self, result: TransferResult) -> None:
        """The transfer's file is staged, so there is nothing more to download. `result` reports that to the API."""
        key = key_of(result)
        with self._changed:
            self._links.setdefault(key, "")
            self._progress.pop(key, None)
            self._staged[key] = result

    def has_work(self, items: Iterable[Transfer]) -> bool:
        """Whether the API listed something that is not staged here."""
        with self._changed:
            return any(key_of(item) not in self._staged for item in items)

    def listed_at(self, key: Key) -> float | None:
        """When a poll last listed it, by the host's clock."""
        with self._changed:
            return self._listed_at.get(key)

    def called_off(self, key: Key) -> bool:
        """True if two polls did not list it: its Job has ended. One poll is not enough, as the index lags behind."""
        with self._changed:
            return self._missed[key] >= MISSED_UNTIL_GONE

    def link(self, key: Key) -> str:
        with self._changed:
            return self._links[key]

    def fresher_link(self, key: Key, stale: str, wait: float, stopping: threading.Event) -> str:
        """Waits for the URL of a later poll. Raises Cancelled or, after `wait` seconds, Stalled."""
        self._ask()
        deadline = time.monotonic() + wait
        with self._changed:
            while self._links[key] == stale:
                if stopping.is_set() or self._missed[key] >= MISSED_UNTIL_GONE:
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Stalled(f"the URL was refused, and no poll brought a new one within {wait:.0f} s", status=403)
                self._changed.wait(min(left, 0.5))
            return self._links[key]

    def advance(self, key: Key, percent: int) -> None:
        with self._changed:
            self._progress[key] = percent

    def unreported(self) -> list[TransferResult]:
        """Progress and staged files that were not reported yet."""
        with self._changed:
            moved = [(key, percent) for key, percent in self._progress.items() if self._reported.get(key) != percent]
            staged = [result for key, result in self._staged.items() if key not in self._staged_reported]
        return staged + [
            {
                "transfer_id": transfer_id,
                "container_id": container_id,
                "error_code": Code.IN_PROGRESS,
                "progress": percent,
            }
            for (transfer_id, container_id), percent in moved
        ]

    def mark_reported(self, results: Iterable[TransferResult]) -> None:
        """The API has taken these reports."""
        with self._changed:
            for result in results:
                key = key_of(result)
                # Progress that was reported before the file was staged does not report the staging.
                if key in self._staged and result.get("staged_at"):
                    self._staged_reported.add(key)
                elif key in self._progress:
                    self._reported[key] = result.get("progress", 0)

    def finish(self, result: TransferResult) -> None:
        """Closes a transfer, and keeps its result in case the API loses it."""
        key = key_of(result)
        with self._changed:
            self._forget(key)
            self._done[key] = result
            if len(self._done) > REMEMBERED:
                self._done.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forgets a transfer; if it is listed again, it counts as new."""
        with self._changed:
            self._forget(key)

    def active(self) -> int:
        """The number of open transfers."""
        with self._changed:
            return len(self._links) - len(self._staged)

    def _forget(self, key: Key) -> None:
        self._links.pop(key, None)
        self._progress.pop(key, None)
        self._reported.pop(key, None)
        self._missed.pop(key, None)
        self._staged.pop(key, None)
        self._staged_reported.discard(key)
        self._listed_at.pop(key, None)
