"""The steps of the export machine: pull, render, publish; and what is done where a step could not.

Each step begins by asking whether its attempt still runs, and each may run twice.
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
            pulled = self._puller.pull(request, self._spec(request), self._pulse(request), seconds_left)
            if isinstance(pulled, RangePlan):
                here = {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}
                # It saves every worker a request, and has to fit into the machine's state once for each.
                told = {"plan": pulled.as_data()} if pulled.is_small else {}
                return {"next": RANGES, "lanes": [here | {"lane": lane} | told for lane in range(pulled.lanes)]}
            return {"next": RENDER if pulled else PULL}

        return self._step(event, step)

    def render_ranges(self, event: Event, seconds_left: float) -> dict[str, Any]:
        """One of several workers that pull and render ranges of pages; started again, it goes on after its records."""
        lane = int(event["lane"])

        def step(request: Request) -> dict[str, Any]:
            worker = self._range_worker()
            told = {"plan": event["plan"]} if "plan" in event else {}
            plan = RangePlan(**event["plan"]) if told else None
            done = worker.work(request, self._spec(request), lane, self._pulse(request), seconds_left, plan)
            return {"next": JOIN if done else RANGES, "lane": lane} | told

        return self._step(event, step)

    def render(self, event: Event) -> dict[str, Any]:
        def step(request: Request) -> dict[str, Any]:
            spec, pulse = self._spec(request), self._pulse(request)
            if event.get("next") == RANGES:
                rendered = self._joiner().join(request, spec)
                # Ranges would not do: the pages are staged after all.
                return {"next": PUBLISH, "file": asdict(rendered)} if rendered else {"next": PULL}
            return {"next": PUBLISH, "file": asdict(self._renderer().render(request, spec, pulse))}

        return self._step(event, step)

    def publish(self, event: Event) -> dict[str, Any]:
        """The end: of a file, or of a machine that failed."""

        def step(request: Request) -> dict[str, Any]:
            if "failure" in event:
                failure = event["failure"]
                raise WorkerLost(f"{failure.get('Error')}: {str(failure.get('Cause'))[:300]}")
            result = dict(event["file"])
            if wanted := [Delivery(**each) for each in request.payload.get("deliver") or ()]:
                # Before the end is told: whoever hears of it finds the copies there.
                result["deliveries"] = self._deliveries.send(request.project_id, wanted, result)
            if addresses := request.payload.get("email"):
                result["emails"] = self._mail.send(addresses, request, result)
            status = self._end(request.project_id, request.request_id, request.attempt, result=result)
            return {"next": OVER, "status": status}

        return self._step(event, step)

    def _step(self, event: Event, step: Callable[[Request], dict[str, Any]]) -> dict[str, Any]:
        here = {name: event[name] for name in ("project_id", "request_id", "attempt")}
        try:
            request = self._queue.running(**here)
            return here | step(request)
        except LeaseLost as error:
            logger.info("another attempt, or nobody, has this export", **here, why=error.detail)
            self._tidy(self._queue.get(here["project_id"], here["request_id"]))
            return here | {"next": OVER}
        except DomainError as error:
            logger.warning("an export's step failed", **here, code=error.code, why=error.detail)
            return here | {"next": OVER, "status": self._end(**here, error=error)}

    def _end(
        self, project_id: str, request_id: str, attempt: int, *, result: Any = None, error: DomainError | None = None
    ) -> str:
        try:
            ended = self._queue.finish(project_id, request_id, attempt, result=result, error=error)
        except RecordNotFound:
            return OVER
        self._tidy(ended)
        return ended.status

    def _tidy(self, request: Request) -> None:
        """Of an export that is over only the file stays. Also done by the step that comes after one that died here."""
        if not request.is_over:
            return
        project_id, task_id = request.project_id, request.request_id
        self._objects.abort_uploads(output_prefix(project_id, task_id))
        if request.status == COMPLETED:
            self._objects.remove(staging_prefix(project_id, task_id))
            self._objects.remove(output_prefix(project_id, task_id), keep=str((request.result or {}).get("key")))
        else:
            # The order stays: someone may mend the source and retry. What it sent so far must not be reused then.
            self._objects.remove(pages_prefix(project_id, task_id))
            self._objects.remove(output_prefix(project_id, task_id))

    def _spec(self, request: Request) -> ExportSpec:
        kept = self._objects.get(spec_object(request.project_id, request.request_id))
        if kept is None:
            raise RecordNotFound("what was ordered is not kept any more; submit the export again")
        return ExportSpec.from_data(read_exact(kept))

    def _pulse(self, request: Request) -> RunningAttempt:
        return RunningAttempt(self._queue, request, TIMING, self._tell, now=lambda: self._clock().timestamp())

    def _tell(self, request: Request, progress: Mapping[str, Any]) -> None:
        shown = self._shown(replace(request, progress=dict(progress)))
        self._live.progress(request.project_id, request.request_id, shown)
