"""Recovers requests and channels that have been silent: lost messages, lost machines, time-outs, leaked slots."""

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
    """Called by compensation, any number of times."""

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
        """Whether there was something to put right; LANE_CLOSED if its channel has no room for it."""
        request = self._store.get(project_id, request_id)
        if request is None or request.status not in (PENDING, RUNNING):
            return False
        return self._waiting(request) if request.status == PENDING else self._running(request)

    def _waiting(self, request: Request) -> bool | str:
        if request.not_before is not None and request.not_before > self._clock().timestamp():
            self._store.look_again(request, request.not_before)
            return False
        reason = self._admission.no_room(request.channel, request.project_id)
        if reason is not None:
            # Many wait here: from now on it is the channel that is looked after, not each of them.
            self._channels.look_again(request.channel, self._clock().timestamp() + SILENCE_SECONDS)
            self._admission.queue_up(request, reason)
            # A share of this project is no obstacle to the others in the lane.
            return False if reason == SHARE else LANE_CLOSED
        self._store.adopt(request)
        self._admission_queue.trigger(request.channel)
        return True

    def _running(self, request: Request) -> bool:
        now = self._clock().timestamp()
        if request.deadline is not None and now >= request.deadline:
            self._stop(request)
            self._finish(request, RequestTimedOut(f"it ran longer than {request.timeout} s"))
            return True
        status = self._runner.status(request)
        if status == "RUNNING":
            self._store.look_again(request, now + SILENCE_SECONDS)
            return False
        if status is None:
            self._runner.start(request)
        else:
            self._finish(request, WorkerLost(f"its machine ended as {status}"))
        return True

    def _finish(self, request: Request, error: DomainError) -> None:
        self._queue.finish(request.project_id, request.request_id, request.attempt, error=error)

    def _stop(self, request: Request) -> None:
        try:
            self._runner.stop(request, "timed out")
        except DomainError:
            logger.exception("the machine was not stopped", request_id=request.request_id)

    def channel(self, name: str) -> bool:
        """A channel in which something waits: its counts are put right, and admission runs."""
        self._adopt_all(name)
        self.heal(name)
        self._channels.look_again(name, self._clock().timestamp() + SILENCE_SECONDS)
        self._admission_queue.trigger(name)
        return False

    def _adopt_all(self, name: str) -> None:
        """Gives what an older version queued, in one lane for all projects, a place in its project's lane."""
        for place in self._channels.waiting_together(name):
            request = self._store.get(place.project_id, place.request_id)
            waits = request is not None and request.status in WAITING and request.priority == place.priority
            if request is None or not waits or not self._store.adopt(request):
                self._channels.drop_shared_place(place)

    def heal(self, name: str) -> int:
        """Gives back slots whose request does not run, then sets the counts to the slots and places that are left."""
        given_back = 0
        slots = self._channels.slots(name)
        holders = self._store.get_many((project_id, request_id) for project_id, request_id, _ in slots)
        for project_id, request_id, attempt in slots:
            request = holders.get((project_id, request_id))
            if request is None or request.status != RUNNING or request.attempt != attempt:
                given_back += self._channels.drop_slot(name, project_id, request_id, attempt)
        channel = self._channels.get(name)
        held = len(self._channels.slots(name))
        if channel is not None and channel.running != held and self._channels.recount(channel, held):
            given_back += max(0, channel.running - held)
        self._channels.recount_running(name)
        self._channels.recount_waiting(name, int(self._clock().timestamp()) // SILENCE_SECONDS)
        if given_back:
            logger.warning("leaked slots were given back", channel=name, slots=given_back)
        return given_back
