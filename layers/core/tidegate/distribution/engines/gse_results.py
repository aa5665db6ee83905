"""Reads GSE's answer to `get_transfer_file_result`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidegate.common.ids import iso
from tidegate.distribution.ports import Results
from tidegate.distribution.targets import DONE, IN_PROGRESS, Figures, Target, TargetReport
from tidegate.errors import SourceBroken

_FAR_FUTURE = 2**35


def read_results(data: Any) -> Results:
    """The reports on targets, and the failure of the upload if there is one. Ignores malformed rows."""
    targets: dict[Target, TargetReport] = {}
    upload: TargetReport | None = None
    for row in _rows(data):
        content = row["content"]
        report = TargetReport(
            int(row["error_code"]), str(row.get("error_msg") or ""), _progress(content), _figures(content)
        )
        if content.get("type") == "upload":
            upload = report if report.code not in (DONE, IN_PROGRESS) else upload
        else:
            agent, container = content.get("dest_agent_id"), content.get("dest_container_id")
            targets[Target(str(agent or ""), str(container or ""))] = report
    return Results(targets, upload)


def _rows(data: Any) -> Iterable[dict[str, Any]]:
    rows = data.get("result") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise SourceBroken("GSE's answer has no list at data.result")
    return [row for row in rows if isinstance(row, dict) and _is_result(row)]


def _is_result(row: Mapping[str, Any]) -> bool:
    return _is_number(row.get("error_code")) and isinstance(row.get("content"), dict)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _progress(content: Mapping[str, Any]) -> int | None:
    progress = content.get("progress")
    return min(100, max(0, progress)) if isinstance(progress, int) else None


def _figures(content: Mapping[str, Any]) -> Figures | None:
    """The figures that are plausible numbers; None if there are none."""
    size, speed, start, end = (
        value if isinstance(value := content.get(name), int) and 0 < value < 2**53 else None
        for name in ("size", "speed", "start_time", "end_time")
    )
    found = Figures(size, speed, _moment(start), _moment(end))
    return found if any(value is not None for value in found) else None


def _moment(at: int | None) -> str | None:
    """The time as text, from Unix time in seconds, or in milliseconds if the number is too large for seconds."""
    if at is None or at >= 1000 * _FAR_FUTURE:
        return None
    return iso(datetime.fromtimestamp(at if at < _FAR_FUTURE else at / 1000, UTC))
