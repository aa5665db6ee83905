"""One invocation of an ingest request: does the work of its type, and ends the request with the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.errors import DomainError, LeaseLost, WorkerLost
from tidegate.ingest.ports import Outcome, Step
from tidegate.queue.attempt import RunningAttempt, Timing
from tidegate.queue.model import CANCELLED, COMPLETED, Request
from tidegate.queue.queue import RequestQueue
from tidegate.queue.request_log import RequestLog
from tidegate.queue.transaction import Refused

logger = Logger(service="tidegate", child=True)

TIMING = Timing(look=2.0, beat=30.0)

Work = Callable[[Step], Outcome]
ReportProgress = Callable[[str, str, dict[str, Any]], None]


class IngestSteps:
    def __init__(
        self,
        queue: RequestQueue,
        work: Mapping[str, Work],
        report_progress: ReportProgress,
        log: RequestLog,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._work = work
        self._progress = report_progress
        self._log = log
        self._clock = clock
        self._monotonic = monotonic

    def work(self, event: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
        """Runs one step. Returns the state machine's next input, in which `more` says whether to invoke again."""
        passed = {name: event[name] for name in ("project_id", "request_id", "attempt", "deadline") if name in event}
        attempt = (str(event["project_id"]), str(event["request_id"]), int(event["attempt"]))
        if "failure" in event:
            cause = str(event["failure"])
            logger.error("the function that ran the step died", **passed, cause=cause[:500])
            died = WorkerLost("the function that ran this attempt died before it was done")
            # The cause may have a stack trace and names of AWS resources: only operators see the line's stack.
            self._log.write(*attempt, "died", died.detail, error=WorkerLost(cause))
            # An earlier invocation of this attempt saved its work, and the next attempt continues there.
            died.progressed = event.get("state") is not None
            return self._end(passed, attempt, error=died)
        began = self._clock()
        try:
            outcome = self._step(event, attempt, seconds_left)
        except LeaseLost as lost:
            logger.info("the step was stopped", **passed, why=lost.detail)
            self._log.write(*attempt, "stopped", lost.detail, since=began)
            self._discard(attempt)
            return passed | {"more": False}
        except DomainError as error:
            self._log.write(*attempt, "failed", error.detail, since=began, error=error)
            return self._end(passed, attempt, error=error)
        except Exception as error:
            # The state machine catches the error. Its text may name AWS resources: only operators see the line's stack.
            self._log.write(*attempt, "died", "an unexpected error", since=began, error=error)
            raise
        if outcome.state is not None:
            self._log.write(*attempt, "goes on", "the time of one invocation is over", since=began)
            return passed | {"more": True, "state": dict(outcome.state)}
        self._log.write(*attempt, "done", _summary(outcome.result), since=began)
        ended = self._end(passed, attempt, result=outcome.result, extra_writes=outcome.extra_writes)
        if outcome.after and ended.get("status") == COMPLETED:
            outcome.after()
        return ended

    def _step(self, event: Mapping[str, Any], attempt: tuple[str, str, int], seconds_left: float) -> Outcome:
        request = self._queue.heartbeat(*attempt)
        self._log.write(*attempt, "begun", f"{request.type}, {seconds_left:.0f} s of this invocation left")
        running = RunningAttempt(
            self._queue, request, TIMING, self._report_progress, now=self._monotonic, heartbeat_sent=True
        )
        return self._work[request.type](Step(request, running, seconds_left, event.get("state")))

    def _report_progress(self, request: Request, progress: Mapping[str, Any]) -> None:
        self._progress(request.project_id, request.request_id, {"status": request.status, "progress": dict(progress)})

    def _discard(self, attempt: tuple[str, str, int]) -> None:
        """Deletes the stored parts of a cancelled request. Others may be resumed or retried, and keep theirs."""
        request = self._queue.get(*attempt[:2])
        discard = getattr(self._work.get(request.type), "discard", None)
        if discard and request.status == CANCELLED:
            discard(request)

    def _end(self, passed: dict[str, Any], attempt: tuple[str, str, int], **outcome: Any) -> dict[str, Any]:
        try:
            ended = self._queue.finish(*attempt, **outcome)
        except Refused as refused:
            # Another request stored the same content, or used up the quota. The next attempt looks again.
            logger.info("the step is repeated by the next attempt", **passed, why=refused.detail)
            ended = self._queue.finish(
                *attempt, error=WorkerLost("another request changed the project's content at the same time")
            )
        logger.info("the request ended", **passed, status=ended.status, code=(ended.error or {}).get("code"))
        self._discard(attempt)
        return passed | {"more": False, "status": ended.status}


def _summary(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.items())
