"""The life cycle of a request: its states, the transitions between them, and how callers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.errors import WrongState

PENDING, QUEUED, RUNNING, PAUSED = "pending", "queued", "running", "paused"
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

WAITING = frozenset({PENDING, QUEUED})
TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})
STATES = WAITING | TERMINAL | {RUNNING, PAUSED}

# action: the states in which it is allowed, and the state after it (None: the same)
TRANSITIONS: Mapping[str, tuple[frozenset[str], str | None]] = {
    "wait": (frozenset({PENDING}), QUEUED),
    "admit": (WAITING, RUNNING),
    "complete": (frozenset({RUNNING}), COMPLETED),
    "fail": (frozenset({RUNNING}), FAILED),
    "retry_later": (frozenset({RUNNING}), PENDING),
    "cancel": (WAITING | {RUNNING, PAUSED}, CANCELLED),
    "pause": (WAITING | {RUNNING}, PAUSED),
    "resume": (frozenset({PAUSED}), PENDING),
    "retry": (frozenset({FAILED}), PENDING),
    "prioritize": (WAITING | {PAUSED}, None),
}

# Why a request waits.
CAPACITY, SHARE, CHANNEL_PAUSED, MUTEX, BACKOFF = "capacity", "share", "paused", "mutex", "backoff"

# Priorities: 1 to 3 for requests of people, 4 to 6 for schedules and other systems, 7 to 10 for maintenance.
BY_HAND, BY_SCHEDULE, UPKEEP = 3, 5, 8
DEFAULT_PRIORITY = BY_SCHEDULE
# Checking stored files is maintenance, unless the caller sets a priority.
PRIORITIES: Mapping[str, int] = {"check": UPKEEP}


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    project_id: str
    type: str
    channel: str
    priority: int
    status: str
    created_at: str
    payload: dict[str, Any] = field(default_factory=dict)
    # Incremented by each admission. A worker that runs an older attempt may no longer write.
    attempt: int = 0
    retries: int = 0
    version: int = 0
    timeout: int = 0
    subscription_id: str | None = None
    # The number of its mutex within the subscription, which runs as many requests at once as it has lanes.
    lane: int = 0
    callback: str | None = None
    last_wait_reason: str | None = None
    not_before: float | None = None
    deadline: float | None = None
    execution: str | None = None
    error: dict[str, str] | None = None
    result: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    start_time: str | None = None
    finish_time: str | None = None
    heartbeat_time: str | None = None
    expired_at: str | None = None

    @property
    def name(self) -> str | None:
        """The name that the caller gave, or the name of the request's file."""
        path = str(self.payload.get("file_path") or "").rstrip("/")
        return self.payload.get("name") or self.payload.get("file_name") or path.rpartition("/")[2] or None

    def shown(self) -> dict[str, Any]:
        """The request as callers and notices see it, without the payload, which has internal references."""
        first = ("request_id", "name", "type", "status", "channel", "priority", "subscription_id")
        last = ("error", "result", "progress", "start_time", "finish_time")
        reason = {"last_wait_reason": self.last_wait_reason if self.status in WAITING else None}
        shown = {name: getattr(self, name) for name in first} | {"attempts": self.attempt} | reason
        shown |= {"create_time": self.created_at} | {name: getattr(self, name) for name in last}
        return {name: value for name, value in shown.items() if value is not None}

    @property
    def mutex(self) -> str | None:
        """The lock that only one running request may hold; None if the request needs none."""
        return f"{self.subscription_id}#{self.lane}" if self.subscription_id and self.lane else self.subscription_id

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL


def next_state(action: str, status: str) -> str:
    """The state after an action. WrongState if the action is not allowed in this state."""
    allowed, target = TRANSITIONS[action]
    if status not in allowed:
        raise WrongState(
            f"cannot {action.replace('_', ' ')} a request that is {status}: it must be {' or '.join(sorted(allowed))}"
        )
    return target or status


def moved(request: Request, action: str, **changes: Any) -> Request:
    """The request after an action. Every change of state goes through here."""
    return replace(request, status=next_state(action, request.status), version=request.version + 1, **changes)


def notice_kind(request_type: str, status: str) -> str:
    """The notice type of a request's end. Callers see exports as tasks, and a batch ends with its request."""
    if request_type == "export":
        return "task.completed" if status == COMPLETED else "task.failed"
    return "batch.finished" if request_type == "batch" else "request.finished"
