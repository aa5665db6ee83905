"""A file that was fetched ahead of its time: what is known of it, and what is to be done with it when. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, Self

from tidegate_client.agent.journal import Key
from tidegate_client.models import Transfer

# How long an agent that was restarted waits, once the time has come, for the API to confirm that the file is wanted.
CONFIRM_SECONDS = 60.0
# How recent a poll must be that listed a file whose Job should be over by the host's clock.
RECENT_SECONDS = 30.0
# Links expire within minutes, and the swarm's tokens are held by its session.
_LEFT_OUT = frozenset({"url", "swarm", "expires_at"})


class Looks(NamedTuple):
    """What tells cheaply that a file was not changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class StagedFile(NamedTuple):
    """`path` is its destination; it lies beside it under its own name."""

    name: str
    path: str
    looks: Looks


@dataclass(frozen=True, slots=True)
class Staged:
    """`figures` are told with the result: how the download went."""

    transfer: Transfer
    file: StagedFile
    staged_at: str
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.transfer["transfer_id"], self.transfer.get("container_id") or ""

    @property
    def activate_at(self) -> float:
        return activation_of(self.transfer) or 0.0

    @property
    def activate_until(self) -> float:
        """When the Job ends. An API that does not say so is asked before a late switch."""
        until = self.transfer.get("activate_until")
        return datetime.fromisoformat(until).timestamp() if until else self.activate_at

    def to_json(self) -> str:
        kept = {name: value for name, value in self.transfer.items() if name not in _LEFT_OUT}
        return json.dumps(asdict(self) | {"transfer": kept})

    @classmethod
    def from_json(cls, text: str) -> Self:
        stored = json.loads(text)
        name, path, looks = stored["file"]
        return cls(stored["transfer"], StagedFile(name, path, Looks(*looks)), stored["staged_at"], stored["figures"])


def activation_of(transfer: Transfer) -> float | None:
    """When the file is to be put in place (seconds since 1970); None: as it arrives."""
    at = transfer.get("activate_at")
    return datetime.fromisoformat(at).timestamp() if at else None


class Move(Enum):
    WAIT = "wait"
    ASK = "ask"
    SWITCH = "switch"
    REMOVE = "remove"


def next_move(staged: Staged, now: float, *, called_off: bool, listed_at: float | None, known_since: float) -> Move:
    """What to do with a staged file now.

    `listed_at`: when a poll of this process last listed it. `known_since`: when this process came to know of it.
    A running agent switches by its own clock, whether it reaches the API or not. One that was restarted asks first,
    for a while: the Job may have been cancelled meanwhile. After the Job's end only an API that still lists it counts.
    """
    if called_off:
        return Move.REMOVE
    if now < staged.activate_at:
        return Move.WAIT
    if now >= staged.activate_until:
        recent = listed_at is not None and abs(now - listed_at) <= RECENT_SECONDS
        return Move.SWITCH if recent else Move.ASK
    waited = now - max(staged.activate_at, known_since)
    return Move.SWITCH if listed_at is not None or waited >= CONFIRM_SECONDS else Move.ASK
