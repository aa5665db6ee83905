"""Finds what a death left behind in the bucket: uploads that nobody will end, objects that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from aws_lambda_powertools import Logger

from tidegate.aws.s3_listing import BucketListing
from tidegate.common.ids import Clock
from tidegate.queue.retention.object_owners import RecordOwners

logger = Logger(service="tidegate", child=True)

# Whatever a function is working on is younger.
STALE = timedelta(days=1)
_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class Swept:
    uploads: int
    orphans: int


class Sweep:
    def __init__(self, objects: BucketListing, owners: Callable[[], Iterable[RecordOwners]], clock: Clock) -> None:
        self._objects = objects
        self._owners = owners
        self._clock = clock

    def sweep(self) -> Swept:
        before = self._clock() - STALE
        stale = [upload for upload in self._objects.uploads() if upload.begun_at < before]
        for upload in stale:
            self._objects.abort_upload(upload.key, upload.upload_id)
        orphans = sum(self._orphans(owner, before) for owner in self._owners())
        logger.info("swept", uploads=len(stale), orphans=orphans)
        return Swept(len(stale), orphans)

    def _orphans(self, owner: RecordOwners, before: datetime) -> int:
        old = (found.key for found in self._objects.list(owner.prefix) if found.changed_at < before)
        removed = 0
        for keys in _groups(old):
            orphans = set(keys) - owner.owned(keys)
            if orphans:
                self._objects.delete(*sorted(orphans))
            removed += len(orphans)
        return removed


def _groups(keys: Iterator[str]) -> Iterator[list[str]]:
    while group := list(islice(keys, _TOGETHER)):
        yield group
