"""Builds the results that the agent reports to the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from tidegate_client.agent.codes import Code
from tidegate_client.agent.preheat.model import Staged
from tidegate_client.models import Transfer, TransferResult

_LONGEST_MESSAGE = 500


def result_of(
    transfer: Transfer, code: Code, message: str = "", figures: dict[str, Any] | None = None
) -> TransferResult:
    result: dict[str, Any] = {
        "transfer_id": transfer["transfer_id"],
        "container_id": transfer.get("container_id") or "",
        "error_code": int(code),
    }
    if message:
        result["error_msg"] = message[:_LONGEST_MESSAGE]
    if code is Code.DONE:
        result["progress"] = 100
    return cast(TransferResult, result | (figures or {}))


def staged_result(staged: Staged) -> TransferResult:
    report = {"progress": 100, "staged_at": staged.staged_at, **staged.figures}
    return result_of(staged.transfer, Code.IN_PROGRESS, "", report)


def figures_of(moved: int, start: float, seconds: float) -> dict[str, Any]:
    """Size, speed and times of a transfer. Its end is computed from the monotonic clock: the wall clock may jump."""
    speed = int(moved / max(seconds, 0.001))
    return {"size": moved, "speed": speed, "start_time": iso(start), "end_time": iso(start + seconds)}


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
