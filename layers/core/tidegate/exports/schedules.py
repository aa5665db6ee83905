"""Recurring exports: the order of a schedule, and its placeholders, such as `{date}`, that each run fills."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from tidegate.aws import keys
from tidegate.common.schedules import run_before
from tidegate.errors import Invalid
from tidegate.exports import model as domain
from tidegate.exports.model import FORMATS, ExportOptions, ExportSpec
from tidegate.queue.schedules import RunOrders, Schedule, ScheduleKind, Schedules, request_id_of_run, request_is_active
from tidegate.records import F, record_from
from tidegate.sheets.values import plain, read_exact, write_exact

if TYPE_CHECKING:
    from tidegate.exports import Exports

# An order is stored in one DynamoDB item, which holds 400 KB.
MOST_BYTES = 300_000
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KNOWN = ("date", "time", "from", "to")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSchedule(Schedule):
    schedule_id: Annotated[str, F("id of the schedule")]
    type: Annotated[str, F(FORMATS)]
    created_by: Annotated[str, F("key_id of its creator")]
    last_task_id: Annotated[str | None, F("the export of the last run")] = None


@dataclass(frozen=True, slots=True)
class ScheduledOrder:
    """The export that each run orders. `multiple`: the caller gave lists of table fields, for several tables."""

    spec: ExportSpec
    options: ExportOptions
    multiple: bool = False

    def of_run(self, schedule: ExportSchedule) -> ScheduledOrder:
        """Returns the order of the run that is due, with `{date}`, `{time}`, `{from}` and `{to}` replaced.

        The period begins at the last run that started, so that no moment is left out or reported twice.
        """
        zone, due = ZoneInfo(schedule.timezone), schedule.planned
        since = schedule.last_run_at or run_before(str(schedule.schedule), due, schedule.timezone)
        start, end = (datetime.fromtimestamp(seconds, zone) for seconds in (since, due))
        day = {"date": f"{end:%Y-%m-%d}", "time": f"{end:%H%M}"}
        # Names have no colons, which not every system allows in file names.
        in_names = day | {"from": f"{start:%Y%m%dT%H%M%S%z}", "to": f"{end:%Y%m%dT%H%M%S%z}"}
        in_queries = day | {"from": start.isoformat(), "to": end.isoformat()}
        in_urls = {name: quote(value, safe="") for name, value in in_queries.items()}
        return self._with_texts(
            lambda field, text: _filled(text, {"source_url": in_urls, "source": in_queries}.get(field, in_names))
        )

    def check_placeholders(self) -> None:
        """Raises Invalid if a text has a placeholder that no run replaces."""

        def check(field: str, text: str) -> str:
            for name in _PLACEHOLDER.findall(text):
                if name not in _KNOWN:
                    detail = f"{{{name}}} is not known: use {', '.join(f'{{{known}}}' for known in _KNOWN)}"
                    raise Invalid(f"{field}: {detail}", errors=[{"loc": ["body", field], "msg": detail}])
            return text

        self._with_texts(check)

    def _with_texts(self, change: Callable[[str, str], str]) -> ScheduledOrder:
        """Returns the order after changing all texts that may have placeholders.

        `change` gets the name of a field and its text, and returns the new text.
        """
        tables = tuple(
            replace(
                table,
                source_url=table.source_url and change("source_url", table.source_url),
                source=_each_text(table.source, lambda text: change("source", text)),
            )
            for table in self.spec.tables
        )
        options, file_name = self.options, self.options.file_name
        copies = tuple(replace(each, key=change("deliver", each.key)) for each in options.deliver)
        options = replace(options, deliver=copies, file_name=file_name and change("file_name", file_name))
        return replace(self, spec=replace(self.spec, tables=tables), options=options)


def _filled(text: str, values: Mapping[str, str]) -> str:
    # Orders that are older than the check may have other words in braces.
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _each_text(each, change) for name, each in value.items()}
    return [_each_text(each, change) for each in value] if isinstance(value, list | tuple) else value


def export_schedules(exports: Exports) -> Schedules[ExportSchedule, ScheduledOrder]:
    """Returns the schedules of exports. Each run of a schedule orders one export."""
    placed = exports.orders

    def stored(schedule: ExportSchedule, order: ScheduledOrder) -> str:
        order.check_placeholders()
        first = order.of_run(schedule)
        placed.check_order(schedule.project_id, first.spec, first.options)
        fields = {"spec": order.spec.as_data(), "options": asdict(order.options), "multiple": order.multiple}
        data = write_exact(fields)
        if len(data) > MOST_BYTES:
            detail = f"a recurring export may have {MOST_BYTES:,} bytes, not {len(data):,}: use a source_url instead"
            raise Invalid(detail, errors=[{"loc": ["body", "source_data"], "msg": detail}])
        return data.decode()

    def start(schedules: Schedules[ExportSchedule, ScheduledOrder], schedule: ExportSchedule, task_id: str) -> None:
        order = schedules.order(schedule).of_run(schedule)
        placed.queue_order(
            schedule.project_id,
            order.spec,
            order.options,
            "schedule",
            task_id=task_id,
            schedule_id=schedule.schedule_id,
            extra_writes=schedules.started_writes(schedule, task_id),
        )

    kind = ScheduleKind(
        record=ExportSchedule,
        keys=keys.EXPORT_SCHEDULES,
        noun="recurring export",
        work_name="task_id",
        work_id=lambda schedule: f"{domain.PREFIX}-{request_id_of_run(schedule.schedule_id, schedule)}",
        works=placed.get_many,
        is_active=partial(request_is_active, exports.queue),
        start=start,
        orders=RunOrders(
            action="export-schedule",
            prefix="xsc",
            quota="export_schedules",
            attribute="order",
            about=lambda order: {"name": order.options.name, "type": order.spec.type},
            stored=stored,
            read=_order_from,
        ),
    )
    return Schedules(exports.queue, kind)


def _order_from(text: str) -> ScheduledOrder:
    data = read_exact(text)
    spec, given = ExportSpec.from_data(data["spec"]), plain(data["options"])
    multiple = bool(data.get("multiple", len(spec.tables) > 1))
    return ScheduledOrder(spec, record_from(ExportOptions, given), multiple)
