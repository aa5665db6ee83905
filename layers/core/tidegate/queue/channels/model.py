"""Channels of the queue, and the places of requests that wait in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_CAPACITY = 10_000
ALL = "all"


@dataclass(frozen=True, slots=True)
class Channel:
    name: str
    capacity: int
    running: int = 0
    paused: bool = False
    # Incremented when a slot is taken or released, so that a recount detects concurrent changes.
    slot_changes: int = 0
    due_at: int | None = None

    @property
    def free(self) -> int:
        return 0 if self.paused else max(0, self.capacity - self.running)


@dataclass(frozen=True, slots=True)
class Place:
    """A waiting request in its project's lane: enough for admission to skip it without reading the request."""

    channel: str
    project_id: str
    request_id: str
    priority: int
    since: str
    status: str
    reason: str | None = None
    not_before: float | None = None
    mutex: str | None = None


def name_fault(name: str) -> str | None:
    if name == ALL or not _NAME.fullmatch(name):
        return f"a channel's name has 1 to 40 characters of a-z, 0-9 and _, starts with a letter, and is not {ALL!r}"
    return None
