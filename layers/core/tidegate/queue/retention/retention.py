"""Removes what is past its time: the record, and the objects that only it owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from aws_lambda_powertools import Logger

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso
from tidegate.queue.model import Request
from tidegate.queue.policies import Policy
from tidegate.queue.retention.archive import Archive
from tidegate.queue.retention.store import RetentionStore

logger = Logger(service="tidegate", child=True)

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
        removed = objects = 0
        for request in past:
            keys = tuple(self._owned[request.type](request)) if request.type in self._owned else ()
            if keys:
                self._objects.delete(*keys)
            keep = self._policies[request.type].keep_expired if request.status == "completed" else 0
            if keep and not request.expired_at:
                until = now + timedelta(seconds=keep)
                done = self._store.expire(replace(request, expired_at=iso(now)), until.timestamp())
            else:
                done = self._store.remove(request)
            removed += done
            objects += len(keys)
        logger.info("cleaned", removed=removed, objects=objects)
        return Cleaned(removed, objects, more=len(past) >= limit)
