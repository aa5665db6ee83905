"""Recovers overdue requests and channels: lost messages, lost state machines, time-outs, leaked slots."""

from __future__ import annotations

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.compensation.poll import LANE_CLOSED
from tidegate.errors import DomainError, RequestTimedOut, WorkerLost
from tidegate.queue.admission.admit import Admission
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.channels.store import ChannelStore
from tidegate.queue.model import PENDING, RUNNING, SHARE, WAITING, Request
from tidegate.queue.queue import SILENCE_SECONDS, RequestQueue
from tidegate.queue.runner import RequestRunner
from tidegate.queue.store import RequestStore

logger = Logger(service="tidegate", child=True)


class RequestRecovery:
    """Handlers of compensation. Each may run any number of times for the same record."""

    def __init__(
        self,
        queue: RequestQueue,
        admission: Admission,
        store: RequestStore,
        channels: ChannelStore,
        admission_queue: AdmissionQueue,
        runner: RequestRunner,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._store = store
        self._channels = channels
        self._admission_queue = admission_queue
        self._runner = runner
        self._clock = clock

    def request(self, project_id: str, request_id: str) -> bool | str:
        """Returns True if the request was recovered, False if nothing was wrong, LANE_CLOSED if its channel is full."""
        request = self._store.get(project_id, request_id)
        if request is None or request.status not in (PENDING, RUNNING):
            return False
        return self._waiting(request) if request.status == PENDING else self._running(request)

    def _waiting(self, request: Request) -> bool | str:
        if request.not_before is not None and request.not_before > self._clock().timestamp():
            self._store.set_due(request, request.not_before)
            return False
        reason = self._admission.no_room(request.channel, request.project_id)
        if reason is not None:
            # Many may wait here, so from now on the channel is due instead of each of them.
            self._channels.set_due(request.channel, self._clock().timestamp() + SILENCE_SECONDS)
            self._admission.wait_reasons.queue_up(request, reason)
            # The share of this project does not keep other projects waiting.
            return False if reason == SHARE else LANE_CLOSED
        self._store.move_to_project_lane(request)
        self._admission_queue.trigger(request.channel)
        return True

    def _running(self, request: Request) -> bool:
        now = self._clock().timestamp()
        if request.deadline is not None and now >= request.deadline:
            self._stop(request)
            self._finish(request, RequestTimedOut(f"the request ran longer than {request.timeout} s"))
            return True
        status = self._runner.status(request)
        if status == "RUNNING":
            self._store.set_due(request, now + SILENCE_SECONDS)
            return False
        if status is None:
            self._runner.start(request)
        else:
            self._finish(request, WorkerLost(f"the state machine ended as {status} without a result"))
        return True

    def _finish(self, request: Request, error: DomainError) -> None:
        self._queue.finish(request.project_id, request.request_id, request.attempt, error=error)

    def _stop(self, request: Request) -> None:
        try:
            self._runner.stop(request, "timed out")
        except DomainError:
            logger.exception("the state machine was not stopped", request_id=request.request_id)

    def channel(self, name: str) -> bool:
        """For a channel with waiting requests: corrects its counts and triggers admission."""
        self._move_shared_places(name)
        self.repair_counts(name)
        self._channels.set_due(name, self._clock().timestamp() + SILENCE_SECONDS)
        self._admission_queue.trigger(name)
        return False

    def _move_shared_places(self, name: str) -> None:
        """Moves places from the lane that all projects shared in an older version to the lanes of their projects."""
        for place in self._channels.shared_places(name):
            request = self._store.get(place.project_id, place.request_id)
            waits = request is not None and request.status in WAITING and request.priority == place.priority
            if request is None or not waits or not self._store.move_to_project_lane(request):
                self._channels.drop_shared_place(place)

    def repair_counts(self, name: str) -> int:
        """Releases slots whose request does not run, then recounts slots and places. Returns how many were released."""
        released = 0
        slots = self._channels.slots(name)
        holders = self._store.get_many((project_id, request_id) for project_id, request_id, _ in slots)
        for project_id, request_id, attempt in slots:
            request = holders.get((project_id, request_id))
            if request is None or request.status != RUNNING or request.attempt != attempt:
                released += self._channels.drop_slot(name, project_id, request_id, attempt)
        channel = self._channels.get(name)
        held = len(self._channels.slots(name))
        if channel is not None and channel.running != held and self._channels.recount(channel, held):
            released += max(0, channel.running - held)
        self._channels.recount_running(name)
        self._channels.recount_waiting(name, int(self._clock().timestamp()) // SILENCE_SECONDS)
        if released:
            logger.warning("leaked slots were released", channel=name, slots=released)
        return released
