"""Who runs next: one run per channel at a time, as the FIFO group of the channel guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.errors import DomainError
from tidegate.projects.audit import SYSTEM
from tidegate.queue import ports as queue_ports
from tidegate.queue.channel_model import Channel, Place
from tidegate.queue.channel_store import ChannelStore
from tidegate.queue.model import BACKOFF, CAPACITY, CHANNEL_PAUSED, MUTEX, PENDING, WAITING, Request, moved
from tidegate.queue.policies import Policy
from tidegate.queue.ports import Refused
from tidegate.queue.queue import RequestQueue
from tidegate.queue.runner import RequestRunner
from tidegate.queue.store import RequestStore

logger = Logger(service="tidegate", child=True)

# Where many wait, the first of them are told why in each run; the rest is told as it moves up.
_NOTES_PER_RUN = 25
_LOOKS_PER_RUN = 200
_LOOK_AGAIN_SECONDS = 60


@dataclass(slots=True)
class _Run:
    channel: Channel
    held: set[tuple[str, str]] = field(default_factory=set)
    admitted: int = 0
    notes: int = 0
    left: int = 0
    looked: int = 0

    @property
    def reason(self) -> str | None:
        if self.channel.paused:
            return CHANNEL_PAUSED
        return CAPACITY if self.channel.free <= 0 else None


class Admission:
    def __init__(
        self,
        store: RequestStore,
        channels: ChannelStore,
        runner: RequestRunner,
        clock: Clock,
        policies: Mapping[str, Policy],
        capacities: Mapping[str, int],
    ) -> None:
        self._store = store
        self._channels = channels
        self._runner = runner
        self._clock = clock
        self._policies = policies
        self._capacities = capacities

    def admit(self, channel_name: str) -> int:
        """Admits what the channel has room for, by priority, then age. Answers how many it admitted."""
        run = _Run(self._channels.ensure(channel_name, self._capacities.get(channel_name, 1)))
        for place in self._channels.waiting(channel_name):
            reason = self._why_not(place, run) or self._try(place, run)
            if reason:
                run.left += reason != BACKOFF
                self._note(place, reason, run)
            run.looked += run.reason is not None
            if run.notes >= _NOTES_PER_RUN <= run.looked or run.looked >= _LOOKS_PER_RUN:
                break
        self._look_again(run)
        logger.info("admitted", channel=channel_name, admitted=run.admitted, left=run.left)
        return run.admitted

    def _why_not(self, place: Place, run: _Run) -> str | None:
        if place.not_before is not None and place.not_before > self._clock().timestamp():
            return BACKOFF
        if run.reason:
            return run.reason
        return MUTEX if (place.project_id, str(place.mutex)) in run.held else None

    def _try(self, place: Place, run: _Run) -> str | None:
        """None if it was admitted, or is not there any more; otherwise why it waits on."""
        request = self._store.get(place.project_id, place.request_id)
        if request is None:
            self._channels.drop_place(place)
            return None
        if request.status not in WAITING or request.priority != place.priority:
            return None
        try:
            admitted = self._take(request)
        except Refused as refused:
            return self._refused(refused, place, run)
        run.channel = replace(run.channel, running=run.channel.running + 1)
        run.admitted += 1
        self.start(admitted)
        return None

    def _take(self, request: Request) -> Request:
        now = self._clock()
        timeout = request.timeout or self._policies[request.type].timeout
        admitted = moved(
            request,
            "admit",
            attempt=request.attempt + 1,
            deadline=now.timestamp() + timeout,
            start_time=iso(now),
            heartbeat_time=iso(now),
            not_before=None,
            last_wait_reason=None,
        )
        line = RequestQueue.line(request, admitted, "admit", SYSTEM, f"a slot of {request.channel} was free", now)
        self._store.move(request, admitted, line, now=now)
        return admitted

    def _refused(self, refused: Refused, place: Place, run: _Run) -> str | None:
        if queue_ports.CHANNEL in refused.parts:
            run.channel = self._channels.ensure(run.channel.name, 1)
            return run.reason or CAPACITY
        if queue_ports.MUTEX in refused.parts:
            run.held.add((place.project_id, str(place.mutex)))
            return MUTEX
        if queue_ports.SLOT in refused.parts:
            # A slot of an earlier attempt was left behind: the channel's recount removes it.
            return CAPACITY
        return None

    def start(self, admitted: Request) -> None:
        """By a name that tells request and attempt: a second start of it is none."""
        try:
            self._runner.start(admitted)
        except DomainError:
            logger.exception("started later, by compensation", request_id=admitted.request_id)

    def _note(self, place: Place, reason: str, run: _Run) -> None:
        if run.notes >= _NOTES_PER_RUN or (place.reason == reason and (place.status != PENDING or reason == BACKOFF)):
            return
        run.notes += 1
        if place.status != PENDING or reason == BACKOFF:
            self._store.note_wait(place, reason)
            return
        request = self._store.get(place.project_id, place.request_id)
        if request is not None and request.status == PENDING:
            self.queue_up(request, reason)

    def queue_up(self, request: Request, reason: str) -> None:
        """pending → queued: seen by admission, and waiting for what `reason` says."""
        now = self._clock()
        queued = moved(request, "wait", last_wait_reason=reason, not_before=None)
        line = RequestQueue.line(request, queued, "wait", SYSTEM, reason, now)
        try:
            self._store.move(request, queued, line, now=now)
        except Refused:
            return

    def _look_again(self, run: _Run) -> None:
        """While something waits for room, the channel itself is due: a lost word does not stop it."""
        waits = run.left > 0 and not run.channel.paused
        now = self._clock().timestamp()
        due_at = run.channel.due_at
        if waits and (due_at is None or due_at < now + _LOOK_AGAIN_SECONDS / 2):
            self._channels.look_again(run.channel.name, now + _LOOK_AGAIN_SECONDS)
        elif not waits and due_at is not None:
            self._channels.look_again(run.channel.name, None)
