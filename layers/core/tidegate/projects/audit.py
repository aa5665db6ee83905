"""Who did what to a record, when and why."""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class AuditLine:
    project_id: str
    record_id: str
    at: str
    who: str
    action: str
    from_state: str | None
    to_state: str
    why: str
    attempt: int = 0
    # Orders lines of one millisecond.
    version: int = 0

    def shown(self) -> dict[str, object]:
        line = {"record": self.record_id, "at": self.at, "who": self.who, "action": self.action}
        return line | {"from": self.from_state, "to": self.to_state, "why": self.why, "attempt": self.attempt}
