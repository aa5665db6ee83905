"""Staged files: downloaded before the time at which they are to be put in place. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, Self

from tidegate_client.agent.journal import Key
from tidegate_client.models import Transfer

# How long after `activate_at` a restarted agent waits for the API to confirm that the file is still wanted.
CONFIRM_SECONDS = 60.0
# How recently a poll must have listed a file whose Job has ended by the host's clock.
RECENT_SECONDS = 30.0
# Not stored: URLs expire within minutes, and the swarm's tokens are secrets that only its session needs.
_LEFT_OUT = frozenset({"url", "swarm", "expires_at"})


class FileMetadata(NamedTuple):
    """File system metadata, which shows without reading the file whether it was changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class StagedFile(NamedTuple):
    """`path` is its destination; until then it has the hidden `name` in the same directory."""

    name: str
    path: str
    metadata: FileMetadata


@dataclass(frozen=True, slots=True)
class Staged:
    """`figures` of the download are reported with the result."""

    transfer: Transfer
    file: StagedFile
    staged_at: str
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for an unreadable time, which would stop the switcher later."""
        _ = self.activate_at, self.activate_until

    @property
    def key(self) -> Key:
        return self.transfer["transfer_id"], self.transfer.get("container_id") or ""

    @property
    def activate_at(self) -> float:
        return activation_of(self.transfer) or 0.0

    @property
    def activate_until(self) -> float:
        """When the Job ends. Without it, the API must confirm any switch after `activate_at`."""
        until = self.transfer.get("activate_until")
        return datetime.fromisoformat(until).timestamp() if until else self.activate_at

    def to_json(self) -> str:
        kept = {name: value for name, value in self.transfer.items() if name not in _LEFT_OUT}
        return json.dumps(asdict(self) | {"transfer": kept})

    @classmethod
    def from_json(cls, text: str) -> Self:
        stored = json.loads(text)
        name, path, metadata = stored["file"]
        return cls(
            stored["transfer"], StagedFile(name, path, FileMetadata(*metadata)), stored["staged_at"], stored["figures"]
        )


def activation_of(transfer: Transfer) -> float | None:
    """When the file is to be put in place (seconds since 1970); None: on arrival."""
    at = transfer.get("activate_at")
    return datetime.fromisoformat(at).timestamp() if at else None


class Action(Enum):
    WAIT = "wait"
    CONFIRM = "confirm"
    SWITCH = "switch"
    REMOVE = "remove"


def next_action(staged: Staged, now: float, *, cancelled: bool, listed_at: float | None, known_since: float) -> Action:
    """What to do with a staged file now.

    `listed_at`: when a poll of this process last listed it. `known_since`: when this process staged or loaded it.
    A running agent switches by its own clock, whether it reaches the API or not. A restarted one first waits for the
    API's confirmation, for a while, since the Job may have been cancelled. After the Job's end it switches only if the
    API still lists the transfer."""
    if cancelled:
        return Action.REMOVE
    if now < staged.activate_at:
        return Action.WAIT
    if now >= staged.activate_until:
        recent = listed_at is not None and abs(now - listed_at) <= RECENT_SECONDS
        return Action.SWITCH if recent else Action.CONFIRM
    waited = now - max(staged.activate_at, known_since)
    return Action.SWITCH if listed_at is not None or waited >= CONFIRM_SECONDS else Action.CONFIRM
