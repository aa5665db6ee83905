"""Who did what to a record, when and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from tidegate.common.ids import iso

SYSTEM = "system"
# Actions on the whole deployment (queue control, clean-up, new projects) are listed under this id; only admins see it.
NO_PROJECT = "_system"
_LONGEST_WHY = 1000


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`who` is the caller's key_id, or `system` for what Tidegate does by itself."""

    project_id: str
    record_id: str
    at: str
    who: str
    action: str
    from_state: str | None
    to_state: str | None
    why: str
    attempt: int = 0
    # Orders the lines of one record within a millisecond.
    version: int = 0

    def shown(self) -> dict[str, object]:
        line = {"record": self.record_id, "at": self.at, "actor": self.who, "who": self.who, "action": self.action}
        return line | {"from": self.from_state, "to": self.to_state, "why": self.why, "attempt": self.attempt}


def named_at(name: str, url: str) -> str:
    """`name at host`. Not the whole URL: it may hold a secret, and audit lines outlive their records."""
    return f"{name} at {urlsplit(url).hostname}"


def act(
    project_id: str,
    record_id: str,
    now: datetime,
    who: str,
    action: str,
    why: str = "",
    *,
    states: tuple[str | None, str | None] = (None, None),
) -> AuditLine:
    """The audit line of one action: `act(project_id, key_id, now, caller.key_id, "key.revoke")`.

    Stores write it in the transaction of the change (`audit_write`).
    """
    return AuditLine(project_id, record_id, iso(now), who, action, *states, why[:_LONGEST_WHY])
