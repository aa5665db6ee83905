"""Removes what crashed functions left in the bucket: unfinished multipart uploads and objects without a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import dropwhile, islice, takewhile

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.s3_listing import BucketListing, Found
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock
from tidegate.queue.retention.object_owners import RecordOwners

logger = Logger(service="tidegate", child=True)

# Younger ones may belong to a function that is still working.
STALE = timedelta(days=1)
_GROUP = 100


@dataclass(frozen=True, slots=True)
class Swept:
    uploads: int
    orphans: int


class Sweep:
    """A sweep that has no time left for all objects is continued by the next one, which starts where it stopped."""

    def __init__(
        self, objects: BucketListing, owners: Callable[[], Iterable[RecordOwners]], table: Table, clock: Clock
    ) -> None:
        self._objects = objects
        self._owners = owners
        self._table = table
        self._clock = clock

    def sweep(self, has_time: Callable[[], bool] = lambda: True) -> Swept:
        before = self._clock() - STALE
        uploads = self._abort_uploads(before, has_time)
        orphans = self._remove_orphans(before, has_time)
        logger.info("swept", uploads=uploads, orphans=orphans)
        return Swept(uploads, orphans)

    def _abort_uploads(self, before: datetime, has_time: Callable[[], bool]) -> int:
        stale = (upload for upload in self._objects.uploads() if upload.begun_at < before)
        aborted = 0
        for upload in takewhile(lambda _: has_time(), stale):
            self._objects.abort_upload(upload.key, upload.upload_id)
            aborted += 1
        return aborted

    def _remove_orphans(self, before: datetime, has_time: Callable[[], bool]) -> int:
        stored = self._table.get(keys.sweep_cursor(), consistent=True) or {}
        start = cursor = str(stored.get("after", ""))
        removed = 0
        for owner in dropwhile(lambda owner: start and not start.startswith(owner.prefix), self._owners()):
            cursor = cursor or owner.prefix
            for found in _groups(self._objects.list(owner.prefix, cursor)):
                if not has_time():
                    self._continue_after(cursor)
                    return removed
                removed += self._remove(owner, [one.key for one in found if one.changed_at < before])
                cursor = found[-1].key
            cursor = ""
        self._continue_after("")
        return removed

    def _continue_after(self, key: str) -> None:
        self._table.write(update(keys.sweep_cursor(), {"after": key}, condition=""))

    def _remove(self, owner: RecordOwners, old: Sequence[str]) -> int:
        orphans = owner.orphans(old) if old else set()
        if orphans:
            self._objects.delete(*sorted(orphans))
        return len(orphans)


def _groups(listed: Iterator[Found]) -> Iterator[list[Found]]:
    while group := list(islice(listed, _GROUP)):
        yield group
