"""One invocation of an ingest request: does the work of its type and ends the request with what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.errors import DomainError, LeaseLost, WorkerLost
from tidegate.ingest.ports import Outcome, Step
from tidegate.queue.model import COMPLETED, Request
from tidegate.queue.ports import Refused
from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

BEAT_SECONDS = 30.0
# A cancelled request is noticed within this time.
LOOK_SECONDS = 2.0

Work = Callable[[Step], Outcome]
Tell = Callable[[str, str, dict[str, Any]], None]


class Beat:
    """Implements `ingest_ports.Pulse`: however often it is called, a look every 2 s and a heartbeat every 30 s."""

    def __init__(self, queue: RequestQueue, request: Request, tell: Tell, monotonic: Callable[[], float]) -> None:
        self._queue = queue
        self._request = request
        self._tell = tell
        self._monotonic = monotonic
        self._looked = self._beaten = monotonic()

    def __call__(self, progress: Mapping[str, Any] | None = None) -> None:
        now = self._monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        request = self._request
        if now - self._beaten < BEAT_SECONDS:
            self._queue.running(request.project_id, request.request_id, request.attempt)
        else:
            self._beaten = now
            self._queue.heartbeat(request.project_id, request.request_id, request.attempt, progress)
        if progress:
            self._tell(request.project_id, request.request_id, {"status": request.status, "progress": dict(progress)})


class IngestSteps:
    def __init__(
        self, queue: RequestQueue, work: Mapping[str, Work], tell: Tell, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue = queue
        self._work = work
        self._tell = tell
        self._monotonic = monotonic

    def work(self, event: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
        """Answers the machine: its own input, and whether there is more to do."""
        passed = {name: event[name] for name in ("project_id", "request_id", "attempt", "deadline") if name in event}
        attempt = (str(event["project_id"]), str(event["request_id"]), int(event["attempt"]))
        if "failure" in event:
            logger.error("the step died", **passed, cause=str(event["failure"])[:500])
            return self._end(passed, attempt, error=WorkerLost("the step that ran it died"))
        try:
            outcome = self._step(event, attempt, seconds_left)
        except LeaseLost as lost:
            logger.info("stopped", **passed, why=lost.detail)
            return passed | {"more": False}
        except DomainError as error:
            return self._end(passed, attempt, error=error)
        if outcome.state is not None:
            return passed | {"more": True, "state": dict(outcome.state)}
        ended = self._end(passed, attempt, result=outcome.result, extra_writes=outcome.extra_writes)
        if outcome.after and ended.get("status") == COMPLETED:
            outcome.after()
        return ended

    def _step(self, event: Mapping[str, Any], attempt: tuple[str, str, int], seconds_left: float) -> Outcome:
        request = self._queue.heartbeat(*attempt)
        beat = Beat(self._queue, request, self._tell, self._monotonic)
        return self._work[request.type](Step(request, beat, seconds_left, event.get("state")))

    def _end(self, passed: dict[str, Any], attempt: tuple[str, str, int], **outcome: Any) -> dict[str, Any]:
        try:
            ended = self._queue.finish(*attempt, **outcome)
        except Refused as refused:
            # Another request stored the same content, or used up the room for it: the next attempt sees what is there.
            logger.info("to be done again", **passed, why=refused.detail)
            ended = self._queue.finish(*attempt, error=WorkerLost("what the project stores changed meanwhile"))
        logger.info("ended", **passed, status=ended.status, code=(ended.error or {}).get("code"))
        return passed | {"more": False, "status": ended.status}
