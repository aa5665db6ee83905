"""Routes for statistics, the audit trail, the clean-up (which also runs daily at 02:00 UTC) and the archive."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.errors import Invalid
from tidegate.projects.audit import NO_PROJECT, act
from tidegate.projects.audit_store import AuditFilter
from tidegate.queue.stats import stats_by_type
from tidegate.web.queue.schemas import ArchiveList, AuditAnswer, AuditList, CleanupAnswer, StatsAnswer, TypeStats
from tidegate.web.routing import Cursor, Limit, Router

router = Router()
_TAGS = ["Operations"]
_DEFAULT_PERIOD = timedelta(days=7)
_EPOCH, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def in_utc(moment: datetime, name: str) -> datetime:
    """The moment in UTC; without an offset it counts as UTC. Raises Invalid if UTC has no such date."""
    try:
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except OverflowError as error:
        message = f"{name} is {moment.isoformat()}, which is outside the years 1 to 9999 in UTC: choose another time"
        raise Invalid(message, errors=[{"loc": ["query", name], "msg": message}]) from error


@router.get("/v1/stats", scope="read", tags=_TAGS, summary="Get statistics of requests by type")
def stats(
    since: Annotated[
        datetime | None, Query(description="ISO 8601; rounded down to the full hour; default: seven days ago")
    ] = None,
) -> StatsAnswer:
    now = app().clock()
    start = in_utc(since, "since") if since else now - _DEFAULT_PERIOD
    start = start.replace(minute=0, second=0, microsecond=0)
    figures = stats_by_type(app().queue.stats.since(router.caller.required_project(), iso(start)))
    types = {kind: TypeStats.model_validate(found) for kind, found in figures.items()}
    return StatsAnswer(since=iso(start), until=iso(now), types=types)


@router.get("/v1/audit", scope="read", tags=_TAGS, summary="List changes: who, when, why")
def audit(
    record: Annotated[str | None, Query(max_length=2048, description="only changes of this record, by its id")] = None,
    actor: Annotated[
        str | None, Query(max_length=200, description="only changes by this key_id, or by `system`")
    ] = None,
    action: Annotated[str | None, Query(max_length=60, description="only this action, such as `key.create`")] = None,
    since: Annotated[datetime | None, Query(description="ISO 8601; only changes at or after this time")] = None,
    until: Annotated[datetime | None, Query(description="ISO 8601; only changes at or before this time")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> AuditList:
    wanted = AuditFilter(record, actor, action, _bound(since), _bound(until))
    page = app().projects.audit.list(router.caller.required_project(), limit, cursor, wanted)
    items = [AuditAnswer.model_validate(line.shown()) for line in page.items]
    return AuditList(items=items, next_cursor=page.next_cursor)


def _bound(given: datetime | None) -> datetime | None:
    """A bound of the audit filter in UTC. Dates outside the calendar become the nearest bound that works."""
    if given is None:
        return None
    try:
        return max(given.replace(tzinfo=given.tzinfo or UTC).astimezone(UTC), _EPOCH)
    except OverflowError:
        return _EPOCH if given.year == 1 else _LAST


@router.post("/v1/cleanup", scope="admin", tags=_TAGS, summary="Remove expired records and files")
def cleanup() -> CleanupAnswer:
    # Recorded separately: up to a thousand records and their objects do not fit into one transaction.
    app().projects.audit.record(act(NO_PROJECT, "cleanup", app().clock(), router.caller.key_id, "cleanup.run"))
    return CleanupAnswer.model_validate(app().queue.retention.clean())


@router.get("/v1/archive", scope="read", tags=_TAGS, summary="List archived requests of a day")
def archive(
    day: Annotated[date, Query(description="the day of the clean-up that archived them, such as 2026-11-16")],
    type: Annotated[str | None, Query(max_length=40)] = None,
    status: Annotated[Literal["completed", "failed", "cancelled"] | None, Query()] = None,
    request_id: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ArchiveList:
    fields = {"type": type, "status": status, "request_id": request_id}
    wanted = {name: value for name, value in fields.items() if value}
    page = app().queue.archive.read(router.caller.project_id, day, limit, cursor, **wanted)
    return ArchiveList(items=page.items, next_cursor=page.next_cursor)
