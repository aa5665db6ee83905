"""Finds what a death left behind in the bucket: uploads that nobody will end, objects that nobody knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple, Protocol

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock

logger = Logger(service="tidegate", child=True)

# Whatever a function is working on is younger.
STALE = timedelta(days=1)
_TOGETHER = 100


class Found(NamedTuple):
    key: str
    changed_at: datetime


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_at: datetime


class Objects(Protocol):
    def list(self, prefix: str) -> Iterable[Found]: ...

    def uploads(self) -> Iterable[Upload]: ...

    def delete(self, *keys: str) -> None: ...

    def abort(self, upload: Upload) -> None: ...


class Owners(Protocol):
    """Which of some objects a record knows."""

    prefix: str

    def owned(self, keys: Collection[str]) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class Swept:
    uploads: int
    orphans: int


class Sweep:
    def __init__(self, objects: Objects, owners: Iterable[Owners], clock: Clock) -> None:
        self._objects = objects
        self._owners = tuple(owners)
        self._clock = clock

    def sweep(self) -> Swept:
        before = self._clock() - STALE
        stale = [upload for upload in self._objects.uploads() if upload.begun_at < before]
        for upload in stale:
            self._objects.abort(upload)
        orphans = sum(self._orphans(owner, before) for owner in self._owners)
        logger.info("swept", uploads=len(stale), orphans=orphans)
        return Swept(len(stale), orphans)

    def _orphans(self, owner: Owners, before: datetime) -> int:
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
