"""Figures, the audit trail, and the cleanup that else runs at 02:00."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.bootstrap import app
from tidegate.domain.ids import iso
from tidegate.domain.request_stats import stats_by_type
from tidegate.errors import Invalid
from tidegate.schemas.queue import ArchiveList, AuditList, CleanupAnswer, StatsAnswer, TypeStats
from tidegate.web.routing import Cursor, Limit, Router

router = Router()
_TAGS = ["Operations"]
_DEFAULT_PERIOD = timedelta(days=7)


def _in_utc(moment: datetime, name: str) -> datetime:
    try:
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except OverflowError as error:
        message = f"{name} is {moment.isoformat()}, which is outside the years 1 to 9999 in UTC"
        raise Invalid(message, errors=[{"loc": ["query", name], "msg": message}]) from error


@router.get("/v1/stats", tags=_TAGS, summary="Requests by type: count, success rate, mean and p95 seconds")
def stats(
    since: Annotated[datetime | None, Query(description="ISO 8601; seven days ago if left out")] = None,
) -> StatsAnswer:
    now = app().clock()
    start = _in_utc(since, "since") if since else now - _DEFAULT_PERIOD
    figures = stats_by_type(app().request_store.since(router.caller.project_id, iso(start)))
    types = {kind: TypeStats.model_validate(found) for kind, found in figures.items()}
    return StatsAnswer(since=iso(start), until=iso(now), types=types)


@router.get("/v1/audit", tags=_TAGS, summary="Every transition: who, when, why")
def audit(
    record: Annotated[str | None, Query(max_length=2048)] = None, limit: Limit = 20, cursor: Cursor = None
) -> AuditList:
    page = app().audit.list(router.caller.project_id, record, limit, cursor)
    return AuditList(items=[line.shown() for line in page.items], next_cursor=page.next_cursor)


@router.post("/v1/cleanup", tags=_TAGS, summary="Remove what is past its retention")
def cleanup() -> CleanupAnswer:
    return CleanupAnswer.model_validate(app().retention.clean())


@router.get("/v1/archive", tags=_TAGS, summary="Requests that left the table on a day")
def archive(
    day: Annotated[date, Query(description="the day of the cleanup, e.g. 2026-11-16")],
    type: Annotated[str | None, Query(max_length=40)] = None,
    status: Annotated[Literal["completed", "failed", "cancelled"] | None, Query()] = None,
    request_id: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ArchiveList:
    fields = {"type": type, "status": status, "request_id": request_id}
    wanted = {name: value for name, value in fields.items() if value}
    page = app().archive.read(router.caller.project_id, day, limit, cursor, **wanted)
    return ArchiveList(items=page.items, next_cursor=page.next_cursor)
