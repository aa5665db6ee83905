"""Routes for the console: its page, its files, and what only the console reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from aws_lambda_powertools.event_handler import Response
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import Field

from tidegate.app import app
from tidegate.aws.clients import alarms
from tidegate.common.sequences import Listed
from tidegate.distribution.lookup import Lookup
from tidegate.distribution.model import ENDED, PENDING, SUCCESS, SUPERSEDED
from tidegate.errors import RecordNotFound, RouteNotFound
from tidegate.queue.model import COMPLETED, FAILED, Request, percentile
from tidegate.records import F
from tidegate.settings import Settings
from tidegate.web import queue as compensation
from tidegate.web.console.bundle import console
from tidegate.web.distribution import JobAnswer
from tidegate.web.openapi import VERSION
from tidegate.web.queue import ChannelAnswer, FreezeAnswer, RequestAnswer
from tidegate.web.routing import Router
from tidegate.web.schemas import Answer
from tidegate.web.static import asset_response, page_headers

# --- schemas


class Me(Answer):
    project_id: Annotated[str, F("id of the project")]
    project_name: Annotated[str | None, F("name of the project")] = None
    scopes: Annotated[
        list[str], F("what the key may do: `read`, `write`, `agent`, `unmask` (lift the masks of exports), `admin`")
    ]
    agent_id: Annotated[str | None, F("the host that a key of scope `agent` is for")] = None
    window_seconds: Annotated[
        int, F("length of the window in which requests for the same file are collected, in seconds")
    ]
    frozen: Annotated[str | None, Field(description="why the deployment is frozen, if it is")] = None


class ChannelOverview(ChannelAnswer):
    channel: Annotated[str, F("the channel of the queue")]


class PointAnswer(Answer):
    """One interval of the hour."""

    count: Annotated[int, F("number of records that ended")]
    failed: Annotated[int, F("how many failed")]


class TypeAnswer(Answer):
    """What ended in the last hour, for one type of work."""

    type: Annotated[str, F("type of work: a type of request, or `job`")]
    count: Annotated[int, F("number of records that ended")]
    success_rate: Annotated[float, F("share that succeeded, 0 to 1")]
    mean_s: Annotated[float, F("mean run time in seconds")]
    p95_s: Annotated[float, F("95th percentile of the run time in seconds")]
    points: Annotated[list[PointAnswer], F("the last hour in intervals of two minutes, oldest first")]


class Overview(Answer):
    """Current activity, and what ended in the last hour."""

    channels: Annotated[list[ChannelOverview], F("all channels of the queue")]
    jobs: Annotated[list[JobAnswer], F("the newest Jobs")]
    requests: Annotated[list[RequestAnswer], F("the newest requests")]
    stats: Annotated[list[TypeAnswer], F("what ended in the last hour, by type")]
    complete: Annotated[bool, F("false if more records ended in the last hour than the figures are based on")]
    compensation: Annotated[dict[str, object], F("the state of the poll for overdue work")]


# --- summary
# Figures of the last hour by type of work, from the records that ended in it.

SPAN = timedelta(hours=1)
POINTS = 30


@dataclass(frozen=True, slots=True)
class Ended:
    """A Job or a request that has ended, for the figures of the last hour."""

    type: str
    succeeded: bool
    started: datetime
    ended: datetime

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended - self.started).total_seconds())


def by_type(records: Iterable[Ended], now: datetime) -> list[TypeAnswer]:
    """A summary of each type, the busiest type first."""
    found: dict[str, list[Ended]] = {}
    for record in records:
        if now - SPAN < record.ended <= now:
            found.setdefault(record.type, []).append(record)
    summaries = [_summary(name, ended, now) for name, ended in found.items()]
    return sorted(summaries, key=lambda summary: (-summary.count, summary.type))


def _summary(name: str, ended: Sequence[Ended], now: datetime) -> TypeAnswer:
    seconds = [record.seconds for record in ended]
    return TypeAnswer(
        type=name,
        count=len(ended),
        success_rate=sum(record.succeeded for record in ended) / len(ended),
        mean_s=round(sum(seconds) / len(seconds), 3),
        p95_s=round(percentile(seconds, 0.95), 3),
        points=_points(ended, now),
    )


def _points(ended: Sequence[Ended], now: datetime) -> list[PointAnswer]:
    counts, failures = [0] * POINTS, [0] * POINTS
    for record in ended:
        place = POINTS - 1 - min(POINTS - 1, int((now - record.ended) / (SPAN / POINTS)))
        counts[place] += 1
        failures[place] += not record.succeeded
    return [PointAnswer(count=count, failed=failed) for count, failed in zip(counts, failures, strict=True)]


# --- overview
# The data of the console's overview, with a bounded number of reads.

# How many of the newest records of each kind are read; the figures of a busier hour are based on these.
RECORDS_READ = 200
RECORDS_SHOWN = 20
# For how many open windows the targets are counted; each needs a read.
WINDOWS_COUNTED = 6

Record = dict[str, Any]


def _with_counts(lookup: Lookup, project_id: str, jobs: Sequence[Record]) -> list[Record]:
    """Returns the Jobs, with counts of targets for open windows.

    Jobs with open windows are read one by one, because lists do not count the targets of open windows.
    """
    still_open = [job["key"] for job in jobs if job["status"] == PENDING][:WINDOWS_COUNTED]
    return [lookup.job(project_id, job["key"]) if job["key"] in still_open else job for job in jobs]


def _ended_job(job: Record) -> Ended | None:
    # A superseded Job neither succeeded nor failed.
    if job["status"] not in ENDED - {SUPERSEDED} or not job.get("finish_time"):
        return None
    return Ended("job", job["status"] == SUCCESS, _moment(job["create_time"]), _moment(job["finish_time"]))


def _ended_request(request: Request) -> Ended | None:
    if request.status not in (COMPLETED, FAILED) or not request.finish_time:
        return None
    started = _moment(request.start_time or request.created_at)
    return Ended(request.type, request.status == COMPLETED, started, _moment(request.finish_time))


def _covers_span(page: Listed[Any], field: str, now: datetime) -> bool:
    """Whether the records that were read cover the whole period of the figures."""
    if page.next_cursor is None or not page.items:
        return True
    oldest = page.items[-1]
    return now - _moment(oldest[field] if isinstance(oldest, dict) else getattr(oldest, field)) >= SPAN


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


# --- system
# The route for the state of the deployment: version, parameters and alarms.

router = Router("Console")
# Settings that no operator chooses: addresses, hashes and names of resources.
_HIDDEN = ("_url", "_arn", "_endpoint", "_sha256", "_name", "_prefix", "_bucket", "_credentials_id")


class AlarmAnswer(Answer):
    name: Annotated[str, F("name of the alarm")]
    state: Annotated[str, Field(description="`ok`, `alarm` or `insufficient_data`")]
    description: Annotated[str, F("what the alarm means")]
    reason: Annotated[str, F("why the alarm is in this state")]
    since: Annotated[str | None, F("since when it is in this state, ISO 8601 UTC")] = None


class SystemAnswer(Answer):
    """The deployment. If its alarms cannot be read, `alarms` is empty and `alarms_error` says why."""

    version: Annotated[str, F("version of the API")]
    stack_name: Annotated[str, F("name of the stack")]
    parameters: Annotated[dict[str, str | int], F("the stack's parameters that are not secret")]
    alarms: Annotated[list[AlarmAnswer], F("the alarms of the stack and their state")]
    alarms_error: Annotated[str | None, F("why the alarms could not be read")] = None
    freeze: Annotated[FreezeAnswer, F("whether the system is frozen, and why")]


@router.get("/v1/system", scope="admin", tags=["Operations"], summary="Get version, parameters and alarms of the stack")
def show() -> SystemAnswer:
    settings = app().settings
    found, error = _alarms(settings.stack_name)
    return SystemAnswer(
        version=VERSION,
        stack_name=settings.stack_name,
        parameters=parameters(settings),
        alarms=found,
        alarms_error=error,
        freeze=FreezeAnswer.model_validate(app().freeze.now()),
    )


def _alarms(stack_name: str) -> tuple[list[AlarmAnswer], str | None]:
    """Returns the stack's alarms, and None or the reason why they could not be read.

    Such a reason does not fail the request, because the rest of the answer is useful without alarms.
    """
    if not stack_name:
        return [], "the function does not know the name of its stack: set STACK_NAME"
    try:
        return [AlarmAnswer.model_validate(alarm) for alarm in alarms(app().cloudwatch, stack_name)], None
    except (BotoCoreError, ClientError) as error:
        return [], str(error)


def parameters(settings: Settings) -> dict[str, str | int]:
    """Parameters by their names in template.yaml."""
    return {
        "".join(part.capitalize() for part in name.split("_")): value
        for name, value in asdict(settings).items()
        if not name.endswith(_HIDDEN)
    }


# --- routes


@router.get("/", scope="open", include_in_schema=False)
def page() -> Response[str]:
    return asset_response(router, console().page, page_headers(_connect_origins()))


@router.get("/console/<name>", scope="open", include_in_schema=False)
def asset(name: str) -> Response[str]:
    found = console().assets.get(name)
    if found is None:
        raise RouteNotFound(f"the console has no file {name[:100]}: reload the page, which may be of an older version")
    return asset_response(router, found)


@router.get("/v1/me", scope="read", summary="Get the project and scopes of the key")
def me() -> Me:
    caller = router.caller
    return Me(
        project_id=caller.project_id,
        project_name=_name_of(caller.project_id),
        scopes=sorted(caller.scopes),
        agent_id=caller.agent_id,
        window_seconds=app().settings.collect_window_seconds,
        frozen=app().freeze.state.reason,
    )


@router.get("/v1/overview", scope="read", summary="Get current activity and the last hour")
def overview() -> Overview:
    project_id, lookup, now = router.caller.project_id, app().distribution.lookup, app().clock()
    jobs = lookup.jobs(project_id, RECORDS_READ, None)
    requests = app().queue.store.list(project_id, RECORDS_READ, None)
    ended = [*filter(None, map(_ended_job, jobs.items)), *filter(None, map(_ended_request, requests.items))]
    return Overview(
        channels=[ChannelOverview.model_validate(channel) for channel in app().queue.channels.stats()],
        jobs=[JobAnswer.model_validate(job) for job in _with_counts(lookup, project_id, jobs.items[:RECORDS_SHOWN])],
        requests=[RequestAnswer.model_validate(request.view()) for request in requests.items[:RECORDS_SHOWN]],
        stats=by_type(ended, now),
        complete=_covers_span(jobs, "create_time", now) and _covers_span(requests, "created_at", now),
        compensation=compensation.show_compensation().model_dump(),
    )


def _name_of(project_id: str) -> str | None:
    """Returns the project's name. None if there is no project, as with an admin key."""
    try:
        return app().projects.projects.get(project_id).name
    except RecordNotFound:
        return None


def _connect_origins() -> set[str]:
    """The origins that the console connects to besides the API: the upload bucket and the WebSocket."""
    origins = {_origin(app().files.bucket.presign_put("uploads/", 60))}
    if socket_url := app().settings.socket_url:
        origins.add(_origin(socket_url))
    return origins


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
