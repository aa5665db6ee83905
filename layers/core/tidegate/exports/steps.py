"""The steps of the export state machine: pull, render, publish, and the end of an export that failed.

Each step first checks that its attempt is still the running one, and each may run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.errors import DomainError, LeaseLost, RecordNotFound, WorkerLost
from tidegate.exports.delivery import Deliveries
from tidegate.exports.email import LinkMail
from tidegate.exports.model import Delivery, ExportSpec, output_prefix, pages_prefix, spec_object, staging_prefix
from tidegate.exports.objects import ExportBucket
from tidegate.exports.pull import Puller
from tidegate.exports.ranges.plan import RangePlan
from tidegate.exports.source_json import read_exact
from tidegate.queue.attempt import RunningAttempt, Timing
from tidegate.queue.model import COMPLETED, Request

if TYPE_CHECKING:
    from tidegate.exports.ranges.join import Joiner
    from tidegate.exports.ranges.worker import RangeWorker
    from tidegate.exports.render import Renderer
    from tidegate.notifications.progress import ProgressFeed
    from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

PULL, RENDER, RANGES, JOIN, PUBLISH, OVER = "pull", "render", "ranges", "join", "publish", "over"
Event = Mapping[str, Any]
TIMING = Timing(look=2.0, beat=2.0)


class ExportSteps:
    def __init__(
        self,
        queue: RequestQueue,
        objects: ExportBucket,
        puller: Puller,
        renderer: Callable[[], Renderer],
        range_worker: Callable[[], RangeWorker],
        joiner: Callable[[], Joiner],
        live: ProgressFeed,
        clock: Clock,
        shown: Callable[[Request], dict[str, Any]],
        deliveries: Deliveries,
        mail: LinkMail,
    ) -> None:
        self._queue = queue
        self._objects = objects
        self._puller = puller
        self._renderer = renderer
        self._range_worker = range_worker
        self._joiner = joiner
        self._live = live
        self._clock = clock
        self._shown = shown
        self._deliveries = deliveries
        self._mail = mail

    def pull(self, event: Event, seconds_left: float) -> dict[str, Any]:
        def step(request: Request) -> dict[str, Any]:
            pulled = self._puller.pull(request, self._spec(request), self._heartbeat(request), seconds_left)
            if isinstance(pulled, RangePlan):
                ids = {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}
                # Passing the plan on saves every worker an S3 request.
                plan = {"plan": pulled.as_data()} if pulled.is_small else {}
                return {"next": RANGES, "lanes": [ids | {"lane": lane} | plan for lane in range(pulled.lanes)]}
            return {"next": RENDER if pulled else PULL}

        return self._step(event, step)

    def render_ranges(self, event: Event, seconds_left: float) -> dict[str, Any]:
        """Runs one of several workers that pull and render ranges of pages. A repeat continues after its records."""
        lane = int(event["lane"])

        def step(request: Request) -> dict[str, Any]:
            worker = self._range_worker()
            passed_on = {"plan": event["plan"]} if "plan" in event else {}
            plan = RangePlan(**event["plan"]) if passed_on else None
            done = worker.work(request, self._spec(request), lane, self._heartbeat(request), seconds_left, plan)
            return {"next": JOIN if done else RANGES, "lane": lane} | passed_on

        return self._step(event, step)

    def render(self, event: Event) -> dict[str, Any]:
        def step(request: Request) -> dict[str, Any]:
            spec, heartbeat = self._spec(request), self._heartbeat(request)
            if event.get("next") == RANGES:
                rendered = self._joiner().join(request, spec)
                # The rows could not be rendered in ranges: stage the pages.
                return {"next": PUBLISH, "file": asdict(rendered)} if rendered else {"next": PULL}
            return {"next": PUBLISH, "file": asdict(self._renderer().render(request, spec, heartbeat))}

        return self._step(event, step)

    def publish(self, event: Event) -> dict[str, Any]:
        """Ends the export: publishes its file, or records that the state machine failed."""

        def step(request: Request) -> dict[str, Any]:
            if "failure" in event:
                failure = event["failure"]
                # Only for the log: the cause may have a stack trace and names of AWS resources.
                cause = str(failure.get("Cause"))[:500]
                logger.error("the function that ran a step died", request_id=request.request_id, cause=cause)
                raise WorkerLost(f"the function that ran a step of the export died ({failure.get('Error')})")
            result = dict(event["file"])
            if wanted := [Delivery(**each) for each in request.payload.get("deliver") or ()]:
                # Before the export ends, so that the copies exist when its callback is sent.
                result["deliveries"] = self._deliveries.send(request.project_id, wanted, result)
            if addresses := request.payload.get("email"):
                result["emails"] = self._mail.send(addresses, request, result)
            status = self._end(request.project_id, request.request_id, request.attempt, result=result)
            return {"next": OVER, "status": status}

        return self._step(event, step)

    def _step(self, event: Event, step: Callable[[Request], dict[str, Any]]) -> dict[str, Any]:
        ids = {name: event[name] for name in ("project_id", "request_id", "attempt")}
        try:
            request = self._queue.running(**ids)
            return ids | step(request)
        except LeaseLost as error:
            logger.info("this attempt of the export is no longer the running one", **ids, why=error.detail)
            self._clean_up(self._queue.get(ids["project_id"], ids["request_id"]))
            return ids | {"next": OVER}
        except DomainError as error:
            logger.warning("a step of an export failed", **ids, code=error.code, why=error.detail)
            return ids | {"next": OVER, "status": self._end(**ids, error=error)}

    def _end(
        self, project_id: str, request_id: str, attempt: int, *, result: Any = None, error: DomainError | None = None
    ) -> str:
        try:
            ended = self._queue.finish(project_id, request_id, attempt, result=result, error=error)
        except RecordNotFound:
            return OVER
        self._clean_up(ended)
        return ended.status

    def _clean_up(self, request: Request) -> None:
        """Deletes everything but the file of an ended export. A step after one that died here does it again."""
        if not request.is_over:
            return
        project_id, task_id = request.project_id, request.request_id
        self._objects.abort_uploads(output_prefix(project_id, task_id))
        if request.status == COMPLETED:
            self._objects.remove(staging_prefix(project_id, task_id))
            self._objects.remove(output_prefix(project_id, task_id), keep=str((request.result or {}).get("key")))
        else:
            # The order is kept for a retry after the source was repaired; its old pages must not be used then.
            self._objects.remove(pages_prefix(project_id, task_id))
            self._objects.remove(output_prefix(project_id, task_id))

    def _spec(self, request: Request) -> ExportSpec:
        data = self._objects.get(spec_object(request.project_id, request.request_id))
        if data is None:
            raise RecordNotFound("the order of this export was deleted: submit the export again")
        return ExportSpec.from_data(read_exact(data))

    def _heartbeat(self, request: Request) -> RunningAttempt:
        return RunningAttempt(self._queue, request, TIMING, self._push_progress, now=lambda: self._clock().timestamp())

    def _push_progress(self, request: Request, progress: Mapping[str, Any]) -> None:
        shown = self._shown(replace(request, progress=dict(progress)))
        self._live.progress(request.project_id, request.request_id, shown)
