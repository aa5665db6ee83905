"""Several admissions in one transaction: the channel and the counts, which they share, are written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.aws.writes import Write, delete, put
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import queued_write
from tidegate.queue.admission.fairness import Turn
from tidegate.queue.admission.standings import standing_write
from tidegate.queue.channels.model import Channel
from tidegate.queue.items import due_of, place_key, request_item
from tidegate.queue.locks import slot_taken, slots_taken
from tidegate.queue.model import Request
from tidegate.queue.stats_store import stats_writes
from tidegate.queue.transaction import CHANNEL, OTHER, PLACE, REQUEST, SLOT, STANDING

# The limit of DynamoDB for one transaction.
_MAX_WRITES = 100
# The requests of one project that fit into a transaction.
MAX_GROUP = 19


def fits_one_transaction(requests: int, projects: int) -> bool:
    """Five writes for each request, two for each project, one for the channel."""
    return 5 * requests + 2 * projects + 1 <= _MAX_WRITES


@dataclass(frozen=True, slots=True)
class AdmissionMove:
    """One admission: the request before and after, its audit line and its project's turn."""

    old: Request
    new: Request
    line: AuditLine
    turn: Turn


def admission_parts(moves: Sequence[AdmissionMove], channel: Channel, now: datetime) -> list[tuple[str, Write]]:
    """The writes that admit different requests of one channel, none with a mutex. `channel`: its state before them."""
    parts: list[tuple[str, Write]] = [(CHANNEL, slots_taken(channel, len(moves)))]
    counts = Counter(move.new.project_id for move in moves)
    last_turns = {move.new.project_id: move.turn for move in moves}
    for project_id, count in counts.items():
        turn = last_turns[project_id]
        # All of them are counted at once, so there must be room below the ceiling for all.
        group_turn = replace(turn, ceiling=turn.ceiling - count + 1)
        standing = standing_write(channel.name, project_id, waiting=-count, running=count, turn=group_turn)
        parts += [(STANDING, standing), (OTHER, queued_write(project_id, -count))]
    stats: dict[tuple[Any, ...], Write] = {}
    for move in moves:
        item = request_item(move.new) | due_of(move.new, now=now.timestamp(), keep_seconds=0)
        seen = {"seen": move.old.version, "was": move.old.status}
        parts += [
            (REQUEST, put(item, "#version = :seen AND #status = :was", **seen)),
            (PLACE, delete(place_key(move.old), "attribute_exists(#pk)")),
            (SLOT, slot_taken(move.new)),
            (OTHER, audit_write(move.line)),
        ]
        for write in stats_writes(move.old, move.new):
            key = tuple(sorted(write.key.items()))
            stats[key] = _summed(stats[key], write) if key in stats else write
    return [*parts, *((OTHER, write) for write in stats.values())]


def _summed(first: Write, second: Write) -> Write:
    sums: Counter[str] = Counter()
    for write in (first, second):
        for name, value in (write.adds or {}).items():
            assert isinstance(value, int)
            sums[name] += value
    return replace(first, adds=dict(sums))
