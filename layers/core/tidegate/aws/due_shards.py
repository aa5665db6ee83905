"""Which partition (shard) of the `due` index a record is written to.

One partition of an index takes about 1,000 writes a second, which is too few under load. But a poll that reads 64
partitions is expensive while there is nothing to do. So processes that write few records use shard 0. It also holds
one entry for each other shard that may hold records: one read shows the poll which shards to read.

A busy process writes to one other shard, chosen at random. More load means more processes, and so more shards.

A crash cannot hide a record: the entry is written before the first record and renewed while the process writes, and
the poll removes it only when no process can still rely on it (`SHARD_KEPT_SECONDS`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.writes import Write, update
from tidegate.common.ids import Clock
from tidegate.errors import DomainError

logger = Logger(service="tidegate", child=True)

# A process writes this many records to shard 0 before it uses another shard.
_FEW_WRITES = 12
# An entry is renewed after this time, and the count of writes starts again.
_RENEWED_SECONDS = 300
# How long a shard without records stays listed: a process relies on its entry for 300 s, a write may come at the end of
# a function of 900 s, and the rest allows for a slow index and for clocks that differ.
SHARD_KEPT_SECONDS = 1800


class DueShards:
    """One process's choice of a shard."""

    def __init__(self, clock: Clock, own: int | None = None) -> None:
        self._clock = clock
        self._own = own or random.randrange(1, keys.DUE_SHARDS)  # noqa: S311
        self._opened_at: float | None = None
        self._counted_since = 0.0
        self._count = 0

    def spread(self, writes: Sequence[Write], carry_out: Callable[[Write], object]) -> list[Write]:
        """The writes, with due records moved to the process's own shard if it writes many.

        `carry_out` performs the write of the shard's entry, which comes first.
        """
        due = sum(_is_due(write.item or write.sets) for write in writes)
        shard = self._shard(due, carry_out) if due else 0
        return [_moved(write, shard) for write in writes] if shard else list(writes)

    def spread_items(
        self, items: Sequence[Mapping[str, Any]], carry_out: Callable[[Write], object]
    ) -> list[Mapping[str, Any]]:
        """Like `spread`, for items that are put without a condition."""
        due = sum(map(_is_due, items))
        shard = self._shard(due, carry_out) if due else 0
        return [_with_shard(item, shard) if shard and _is_due(item) else item for item in items]

    def _shard(self, due: int, carry_out: Callable[[Write], object]) -> int:
        now = self._clock().timestamp()
        if not 0 <= now - self._counted_since < _RENEWED_SECONDS:
            self._counted_since, self._count = now, 0
        self._count += due
        if self._count <= _FEW_WRITES:
            return 0
        if self._opened_at is None or not 0 <= now - self._opened_at < _RENEWED_SECONDS:
            try:
                carry_out(_entry(self._own, now))
            except (ClientError, BotoCoreError, DomainError):
                logger.exception("the shard's entry could not be written: records go to shard 0", shard=self._own)
                return 0
            self._opened_at = now
        return self._own


def _entry(shard: int, now: float) -> Write:
    # Due at 0, so that the poll reads the entries first.
    due = keys.due("", 0, keys.SHARD_KIND)
    return update(keys.due_shard(shard), {"shard": shard, "opened_at": int(now), **due}, condition="")


def _is_due(given: Mapping[str, Any] | None) -> bool:
    return given is not None and given.get("due_pk") == keys.due_partition(0) and given["due_kind"] != keys.SHARD_KIND


def _with_shard(given: Mapping[str, Any], shard: int) -> dict[str, Any]:
    return {**given, "due_pk": keys.due_partition(shard)}


def _moved(write: Write, shard: int) -> Write:
    if _is_due(write.item):
        return replace(write, item=_with_shard(write.item or {}, shard))
    return replace(write, sets=_with_shard(write.sets or {}, shard)) if _is_due(write.sets) else write
