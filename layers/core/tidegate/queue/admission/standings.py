"""A project's standing in a channel: how many of its requests wait and run.

The counts are written in the same transaction as the requests that they count, so a crash cannot make them differ.
"""

from __future__ import annotations

from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.writes import Write, below, update
from tidegate.queue.admission.fairness import Standing, Turn


def standing_from(item: Item) -> Standing:
    counts = {name: int(item.get(name, 0)) for name in ("waiting", "running", "turn", "changes")}
    return Standing(item["sk"], **counts)


def standing_write(
    channel: str, project_id: str, *, waiting: int = 0, running: int = 0, turn: Turn | None = None
) -> Write:
    """Adds to the counts. With a turn, the write is refused if the project already holds as many slots as it may."""
    bound: dict[str, Any] = {"ceiling": turn.ceiling} if turn else {}
    return update(
        keys.standing(channel, project_id),
        {"turn": turn.number if turn else None},
        adds={name: value for name, value in (("waiting", waiting), ("running", running)) if value} | {"changes": 1},
        condition=below("running", "ceiling", allows_none=turn.ceiling > 0) if turn else "",
        **bound,
    )
