"""Removes what is past its time: the record, and the objects that only it owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from aws_lambda_powertools import Logger

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso
from tidegate.queue.model import Request
from tidegate.queue.policies import Policy
from tidegate.queue.retention.archive import Archive
from tidegate.queue.retention.store import RetentionStore

logger = Logger(service="tidegate", child=True)

# Removed side by side: one after another, a day's function would remove less than a busy day brings.
_AT_ONCE = 16

# The objects of a request of one type: exports own their files, the library's content belongs to no request.
Objects = Callable[[Request], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Cleaned:
    removed: int
    objects: int
    more: bool


class Retention:
    def __init__(
        self,
        store: RetentionStore,
        objects: Bucket,
        clock: Clock,
        policies: Mapping[str, Policy],
        owned: Mapping[str, Objects],
        archive: Archive,
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._policies = policies
        self._owned = owned
        self._archive = archive

    def clean(self, limit: int = 1000) -> Cleaned:
        """Archive, then objects, then the record: whatever fails in between, the record is still there to repeat it."""
        now = self._clock()
        past = list(self._store.past(now.timestamp(), limit))
        self._archive.keep([request for request in past if not request.expired_at])
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            done = list(threads.map(lambda request: self._remove(request, now), past))
        removed, objects = sum(gone for gone, _ in done), sum(count for _, count in done)
        logger.info("cleaned", removed=removed, objects=objects)
        return Cleaned(removed, objects, more=len(past) >= limit)

    def _remove(self, request: Request, now: datetime) -> tuple[bool, int]:
        """Whether the record went or was marked as expired, and how many objects went before it."""
        keys = tuple(self._owned[request.type](request)) if request.type in self._owned else ()
        if keys:
            self._objects.delete(*keys)
        keep = self._policies[request.type].keep_expired if request.status == "completed" else 0
        if keep and not request.expired_at:
            until = now + timedelta(seconds=keep)
            return self._store.expire(replace(request, expired_at=iso(now)), until.timestamp()), len(keys)
        return self._store.remove(request), len(keys)
