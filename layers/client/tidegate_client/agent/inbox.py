"""What the agent knows of its transfers: which run, how far they are, and the newest link to each."""

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
# A list this long may have been cut short, so it does not show what was taken back.
CUT_SHORT = 100
MISSED_UNTIL_GONE = 2


def key_of(item: Transfer | TransferResult) -> Key:
    return item["transfer_id"], item.get("container_id") or ""


class Inbox:
    def __init__(self, ask: Callable[[], None] = lambda: None) -> None:
        """`ask` brings on a poll: somebody needs a fresh link."""
        self._ask = ask
        self._changed = threading.Condition()
        self._links: dict[Key, str] = {}
        self._missed: Counter[Key] = Counter()
        self._progress: dict[Key, int] = {}
        self._told: dict[Key, int] = {}
        self._done: OrderedDict[Key, TransferResult] = OrderedDict()

    def offer(
        self, items: Iterable[Transfer], settled: Callable[[Key], bool]
    ) -> tuple[list[Transfer], list[TransferResult]]:
        """Take a poll's answer. Gives the new transfers, oldest first, and results that the API seems not to have got.

        What is settled has its result, which only waits to be told."""
        new: list[Transfer] = []
        repeat: list[TransferResult] = []
        with self._changed:
            listed = {key_of(item): item for item in items}
            # Asked before anything changes: a journal that cannot be read must not leave transfers half taken.
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
            self._note_missing(listed)
            self._changed.notify_all()
        new.sort(key=lambda item: item.get("sequence") or 0)
        return new, repeat

    def _note_missing(self, listed: Collection[Key]) -> None:
        for key in self._links:
            if key in listed:
                self._missed.pop(key, None)
            elif len(listed) < CUT_SHORT:
                self._missed[key] += 1

    def called_off(self, key: Key) -> bool:
        """True if two polls did not list it: its Job is over or cancelled. One is not enough, as the index lags."""
        with self._changed:
            return self._missed[key] >= MISSED_UNTIL_GONE

    def link(self, key: Key) -> str:
        with self._changed:
            return self._links[key]

    def fresher_link(self, key: Key, stale: str, wait: float, stopping: threading.Event) -> str:
        """The link that a later poll brought."""
        self._ask()
        deadline = time.monotonic() + wait
        with self._changed:
            while self._links[key] == stale:
                if stopping.is_set() or self._missed[key] >= MISSED_UNTIL_GONE:
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Stalled(f"the link is refused and no other came in {wait:.0f} s", status=403)
                self._changed.wait(min(left, 0.5))
            return self._links[key]

    def advance(self, key: Key, percent: int) -> None:
        with self._changed:
            self._progress[key] = percent

    def news(self) -> list[TransferResult]:
        """Progress that has not been told yet."""
        with self._changed:
            moved = [(key, percent) for key, percent in self._progress.items() if self._told.get(key) != percent]
            self._told.update(moved)
        return [
            {
                "transfer_id": transfer_id,
                "container_id": container_id,
                "error_code": Code.IN_PROGRESS,
                "progress": percent,
            }
            for (transfer_id, container_id), percent in moved
        ]

    def finish(self, result: TransferResult) -> None:
        key = key_of(result)
        with self._changed:
            self._forget(key)
            self._done[key] = result
            if len(self._done) > REMEMBERED:
                self._done.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forgets a transfer that was cancelled: if it is listed again, it is new."""
        with self._changed:
            self._forget(key)

    def active(self) -> int:
        with self._changed:
            return len(self._links)

    def _forget(self, key: Key) -> None:
        self._links.pop(key, None)
        self._progress.pop(key, None)
        self._told.pop(key, None)
        self._missed.pop(key, None)
