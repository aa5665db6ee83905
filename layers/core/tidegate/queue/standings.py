"""What is counted of a project: its standing in a channel, and its usage over all channels.

Counts change in the transaction that changes what they count, so a crash cannot part them.
"""

from __future__ import annotations

from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.writes import Write, update
from tidegate.queue.fairness import Standing, Turn


def standing_from(item: Item) -> Standing:
    counts = {name: int(item.get(name, 0)) for name in ("waiting", "running", "turn", "changes")}
    return Standing(item["sk"], **counts)


def standing_write(
    channel: str, project_id: str, *, waiting: int = 0, running: int = 0, turn: Turn | None = None
) -> Write:
    """Adds to the counts. With a turn: refused if the project holds as many slots as it may."""
    bound: dict[str, Any] = {"ceiling": turn.ceiling} if turn else {}
    return update(
        keys.standing(channel, project_id),
        {"turn": turn.number if turn else None},
        adds={name: value for name, value in (("waiting", waiting), ("running", running)) if value} | {"changes": 1},
        condition=_below("running", "ceiling", allows_none=turn.ceiling > 0) if turn else "",
        **bound,
    )


def queued_write(project_id: str, change: int, limit: int | None = None) -> Write:
    """Adds to the project's waiting requests. With a limit: refused if as many wait already."""
    bound: dict[str, Any] = {"limit": limit} if limit is not None else {}
    return update(
        keys.usage(project_id),
        adds={"queued": change},
        condition=_below("queued", "limit", allows_none=limit > 0) if limit is not None else "",
        **bound,
    )


def stored_bytes_write(project_id: str, size: int, limit: int | None) -> Write:
    """Adds new content to the project's stored bytes. With a limit: refused if it does not fit."""
    bound: dict[str, Any] = {"room": limit - size + 1} if limit is not None else {}
    return update(
        keys.usage(project_id),
        adds={"stored_bytes": size},
        condition=_below("stored_bytes", "room", allows_none=limit >= size) if limit is not None else "",
        **bound,
    )


def _below(count: str, bound: str, *, allows_none: bool) -> str:
    """A count that is not there yet is 0, which is not below a limit of 0."""
    return f"attribute_not_exists(#{count}) OR #{count} < :{bound}" if allows_none else f"#{count} < :{bound}"
