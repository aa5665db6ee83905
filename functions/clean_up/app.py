"""Daily at 02:00: removes records and objects past their retention."""

from __future__ import annotations

from typing import Any

from tidegate.bootstrap import app

_RESERVE_MS = 30_000


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    removed = objects = 0
    more = True
    while more and context.get_remaining_time_in_millis() > _RESERVE_MS:
        cleaned = app().retention.clean()
        removed, objects, more = removed + cleaned.removed, objects + cleaned.objects, cleaned.more
    return {"removed": removed, "objects": objects}
