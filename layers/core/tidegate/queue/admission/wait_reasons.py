"""Stores on waiting requests why they wait."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from tidegate.common.ids import Clock
from tidegate.projects.audit import SYSTEM
from tidegate.queue.admission.turns import Turns
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.channels.model import Place
from tidegate.queue.model import BACKOFF, PENDING, Request, moved
from tidegate.queue.queue import RequestQueue
from tidegate.queue.store import RequestStore
from tidegate.queue.transaction import Refused

# One run of admission writes the reason to this many requests. Those further back get theirs as they move up.
_REASONS_PER_RUN = 25
_FEW, _THREADS = 4, 8


class WaitReasons:
    def __init__(self, store: RequestStore, admission_queue: AdmissionQueue, clock: Clock) -> None:
        self._store = store
        self._admission_queue = admission_queue
        self._clock = clock

    def write(self, turns: Turns) -> int:
        """Writes the reasons of the first waiting requests. Returns how many wait for something other than back-off.

        Also schedules the run of admission that may give the next extra slot.
        """
        backing_off = 0
        reasons: list[tuple[Place, str]] = []
        extra = turns.next_extra_slot()
        for place, reason in turns.still_waiting():
            backing_off += reason == BACKOFF
            if len(reasons) < _REASONS_PER_RUN and _is_new(place, reason):
                reasons.append((place, reason))
                if extra is not None and place == extra[0]:
                    at = datetime.fromtimestamp(extra[1], UTC)
                    self._admission_queue.wake(place.channel, at, self._clock())
        self._write_all(reasons)
        return max(0, turns.waiting - backing_off)

    def _write_all(self, reasons: Sequence[tuple[Place, str]]) -> None:
        if len(reasons) < _FEW:
            for place, reason in reasons:
                self._write(place, reason)
            return
        # In parallel, because the next run of the channel waits for this one.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="reason") as pool:
            list(pool.map(self._write, *zip(*reasons, strict=True)))

    def _write(self, place: Place, reason: str) -> None:
        if place.status != PENDING or reason == BACKOFF:
            self._store.note_wait(place, reason)
            return
        request = self._store.get(place.project_id, place.request_id)
        if request is not None and request.status == PENDING:
            self.queue_up(request, reason)

    def queue_up(self, request: Request, reason: str) -> None:
        """Moves a request from pending to queued: admission has seen it, and it waits for `reason`."""
        now = self._clock()
        queued = moved(request, "wait", last_wait_reason=reason)
        line = RequestQueue.line(request, queued, "wait", SYSTEM, reason, now)
        try:
            self._store.move(request, queued, line, now=now)
        except Refused:
            return


def _is_new(place: Place, reason: str) -> bool:
    """Whether the reason, or the state `queued`, is not stored yet."""
    return place.reason != reason or (place.status == PENDING and reason != BACKOFF)
