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
# The API lists at most this many: a transfer that is not in a full list may still be open.
LIST_LIMIT, STAGED_LIST_LIMIT = 100, 1000
MISSED_POLLS_UNTIL_CANCELLED = 2


def key_of(item: Transfer | TransferResult) -> Key:
    return item["transfer_id"], item.get("container_id") or ""


def is_truncated(items: Iterable[Transfer]) -> bool:
    """Whether the API may have more than it listed: it limits transfers to download and staged ones separately."""
    staged = [bool(item.get("staged_at")) for item in items]
    return staged.count(False) >= LIST_LIMIT or staged.count(True) >= STAGED_LIST_LIMIT


class Inbox:
    def __init__(self, trigger_poll: Callable[[], None] = lambda: None) -> None:
        """`trigger_poll` is called when a fresh URL is needed."""
        self._trigger_poll = trigger_poll
        self._changed = threading.Condition()
        self._urls: dict[Key, str] = {}
        self._missed: Counter[Key] = Counter()
        self._progress: dict[Key, int] = {}
        self._reported: dict[Key, int] = {}
        # Transfers with a staged file: the result that reports them, and when a poll last listed them.
        self._staged: dict[Key, TransferResult] = {}
        self._staged_reported: set[Key] = set()
        self._listed_at: dict[Key, float] = {}
        self._done: OrderedDict[Key, TransferResult] = OrderedDict()

    def take_poll(
        self, items: Iterable[Transfer], has_result: Callable[[Key], bool]
    ) -> tuple[list[Transfer], list[TransferResult]]:
        """Takes the answer of a poll. Returns new transfers, oldest first, and results to report again.

        The API seems to have lost the result of a finished transfer that it still lists.

        `has_result` is True for a transfer whose result is in the journal and only has to be reported."""
        new: list[Transfer] = []
        repeat: list[TransferResult] = []
        with self._changed:
            listed = {key_of(item): item for item in items}
            # Read the journal before anything changes: after an error no transfer must count as taken.
            in_journal = {key for key in listed if has_result(key)}
            for key, item in listed.items():
                if key in in_journal:
                    continue
                if key in self._done:
                    repeat.append(self._done[key])
                    continue
                if key not in self._urls:
                    new.append(item)
                    self._progress[key] = 0
                self._urls[key] = item["url"]
                self._listed_at[key] = time.time()
            self._note_missing(listed, is_truncated(listed.values()))
            self._changed.notify_all()
        new.sort(key=lambda item: item.get("sequence") or 0)
        return new, repeat

    def _note_missing(self, listed: Collection[Key], truncated: bool) -> None:
        for key in self._urls:
            if key in listed:
                self._missed.pop(key, None)
            elif not truncated:
                self._missed[key] += 1

    def mark_staged(self, result: TransferResult) -> None:
        """The transfer's file is staged, so there is nothing more to download. `result` reports that to the API."""
        key = key_of(result)
        with self._changed:
            self._urls.setdefault(key, "")
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

    def is_cancelled(self, key: Key) -> bool:
        """True if two polls did not list it: its Job has ended. One poll is not enough, as the index lags behind."""
        with self._changed:
            return self._missed[key] >= MISSED_POLLS_UNTIL_CANCELLED

    def url(self, key: Key) -> str:
        with self._changed:
            return self._urls[key]

    def wait_for_new_url(self, key: Key, stale: str, wait: float, stopping: threading.Event) -> str:
        """Waits for the URL of a later poll. Raises Cancelled or, after `wait` seconds, Stalled."""
        self._trigger_poll()
        deadline = time.monotonic() + wait
        with self._changed:
            while self._urls[key] == stale:
                if stopping.is_set() or self._missed[key] >= MISSED_POLLS_UNTIL_CANCELLED:
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Stalled(f"S3 refused the URL, and no poll returned a new one within {wait:.0f} s", status=403)
                self._changed.wait(min(left, 0.5))
            return self._urls[key]

    def advance(self, key: Key, percent: int) -> None:
        with self._changed:
            self._progress[key] = percent

    def unreported(self) -> list[TransferResult]:
        """Progress and staged files that were not reported yet."""
        with self._changed:
            progress = [(key, percent) for key, percent in self._progress.items() if self._reported.get(key) != percent]
            staged = [result for key, result in self._staged.items() if key not in self._staged_reported]
        return staged + [
            {
                "transfer_id": transfer_id,
                "container_id": container_id,
                "error_code": Code.IN_PROGRESS,
                "progress": percent,
            }
            for (transfer_id, container_id), percent in progress
        ]

    def mark_reported(self, results: Iterable[TransferResult]) -> None:
        """The API has accepted these reports."""
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
            return len(self._urls) - len(self._staged)

    def _forget(self, key: Key) -> None:
        self._urls.pop(key, None)
        self._progress.pop(key, None)
        self._reported.pop(key, None)
        self._missed.pop(key, None)
        self._staged.pop(key, None)
        self._staged_reported.discard(key)
        self._listed_at.pop(key, None)
