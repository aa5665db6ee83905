"""Removes requests after their retention time, with the objects that belong to them alone."""

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

# One after another, the daily function would remove fewer records than a busy day adds.
_THREADS = 16

# Returns the objects of a request of one type. Exports own their files; files of the library belong to no request.
Objects = Callable[[Request], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How many records and objects were removed, and whether there may be more."""

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
        """Removes up to `limit` records: archives them, then deletes their objects, then the records.

        In this order, a run that fails in between is repeated by the next one. A record that cannot be removed is
        logged and does not stop the others.
        """
        now = self._clock()
        past = list(self._store.past(now.timestamp(), limit))
        self._archive.keep([request for request in past if not request.expired_at])
        with ThreadPoolExecutor(_THREADS) as threads:
            outcomes = list(threads.map(lambda request: self._try_to_remove(request, now), past))
        done = [outcome for outcome in outcomes if outcome is not None]
        removed, objects = sum(gone for gone, _ in done), sum(count for _, count in done)
        logger.info("cleaned", removed=removed, objects=objects, failed=len(past) - len(done))
        return Cleaned(removed, objects, more=len(past) >= limit and bool(done))

    def _try_to_remove(self, request: Request, now: datetime) -> tuple[bool, int] | None:
        """The result of `_remove`; None if it failed."""
        try:
            return self._remove(request, now)
        except Exception:
            logger.exception("a request past its retention was not removed", request_id=request.request_id)
            return None

    def _remove(self, request: Request, now: datetime) -> tuple[bool, int]:
        """(whether the record was removed or marked as expired, the number of objects deleted)."""
        keys = tuple(self._owned[request.type](request)) if request.type in self._owned else ()
        if keys:
            self._objects.delete(*keys)
        keep = self._policies[request.type].keep_expired if request.status == "completed" else 0
        if keep and not request.expired_at:
            until = now + timedelta(seconds=keep)
            return self._store.expire(replace(request, expired_at=iso(now)), until.timestamp()), len(keys)
        return self._store.remove(request), len(keys)
