"""Subscriptions: create, change, preview, and scan by hand or by schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, LeaseLost, RecordNotFound, UrlNotAllowed, WrongState
from tidegate.files.library import Announcement
from tidegate.http.model import Limits
from tidegate.ingest.download import HostPauses
from tidegate.ingest.feeds import Entry
from tidegate.ingest.sources import (
    DELETING,
    Selection,
    SourceList,
    SourceReader,
    Subscription,
    SubscriptionStore,
)
from tidegate.ingest.submit import IngestSubmit
from tidegate.ingest.values import Outcome, Step
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.projects.projects import Projects, ProjectStore
from tidegate.projects.secrets import CredentialStore
from tidegate.queue.control import Control
from tidegate.queue.model import BY_HAND, BY_SCHEDULE, TERMINAL, Request
from tidegate.queue.schedules import ACTIVE, PAUSED, ScheduleParts, Schedules, check_revision
from tidegate.queue.store import RequestStore

# --- subscriptions
# Subscriptions: create, change, preview, scan by hand or by schedule, and delete them with their queued requests.

# An API call must end within half a minute.
_PREVIEW_LIMITS = Limits(total=20, max_bytes=32 * 1024 * 1024)
logger = Logger(service="tidegate", child=True)

_PAGE = 100
# The call that deletes a subscription cancels this many of its requests; compensation cancels the rest.
CANCELLED_AT_ONCE = 5
# How long compensation works on one deletion at a time, and how many requests it cancels in parallel.
DELETE_SECONDS = 20.0
_CANCELS_TOGETHER = 16


class Subscriptions:
    def __init__(
        self,
        store: SubscriptionStore,
        requests: RequestStore,
        control: Control,
        intake: IngestSubmit,
        sources: SourceReader,
        quotas: ProjectStore,
        scans: ScanSchedules,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._requests = requests
        self._control = control
        self._intake = intake
        self._sources = sources
        self._quotas = quotas
        self.scans = scans
        self._clock = clock
        self._monotonic = monotonic

    def create(self, described: Subscription, *, who: str = SYSTEM) -> Subscription:
        """Creates a subscription. `described` has everything but its id, times and next run.

        QuotaExceeded if the project has as many as its quota allows.
        """
        self._intake.check_url(described.project_id, described.source_url)
        now = self._clock()
        made = replace(described, subscription_id=new_id("sub", now), created_at=iso(now), counted=True)
        made = made.rescheduled(replace(made, schedule=None), now)
        why = named_at(made.name, made.source_url)
        line = act(made.project_id, made.subscription_id, now, who, "subscription.create", why)
        self._store.add(made, line, self._quotas.quotas(made.project_id).subscriptions)
        return made

    def get(self, project_id: str, subscription_id: str) -> Subscription:
        found = self._store.get(project_id, subscription_id)
        if found is None or found.status == DELETING:
            raise RecordNotFound(f"this project has no subscription with the id {subscription_id}")
        return found

    def change(
        self,
        project_id: str,
        subscription_id: str,
        changes: Mapping[str, Any],
        *,
        revision: int | None = None,
        who: str,
    ) -> Subscription:
        """Sets the named fields; None removes one. Conflict if `revision` is given and is not the present one."""
        old = self.get(project_id, subscription_id)
        check_revision(old, revision, "subscription")
        if "source_url" in changes:
            self._intake.check_url(project_id, str(changes["source_url"]))
        new = replace(old, **changes)
        if new == old:
            return old
        if set(changes) == {"status"}:
            return self._write(old, new, who, f"subscription.{'pause' if new.status == PAUSED else 'resume'}")
        return self._write(old, new, who, "subscription.change", ", ".join(sorted(changes)))

    def switch(self, project_id: str, subscription_id: str, *, paused: bool, who: str) -> Subscription:
        """Stops or continues its schedule. Scans by hand work in both states. Idempotent."""
        return self.change(project_id, subscription_id, {"status": PAUSED if paused else ACTIVE}, who=who)

    def _write(self, old: Subscription, new: Subscription, who: str, action: str, why: str = "") -> Subscription:
        now = self._clock()
        new = replace(new.rescheduled(old, now), revision=old.revision + 1)
        line = act(new.project_id, new.subscription_id, now, who, action, why)
        reads = ("source_url", "format", "include", "exclude", "file_path", "credentials")
        read_again = any(getattr(new, name) != getattr(old, name) for name in reads)
        if not self._store.change(old, new, line, read_again=read_again):
            raise Conflict("the subscription was changed by another request meanwhile: read it and try again")
        return new

    def preview(self, project_id: str, url: str, selection: Selection) -> SourceList:
        """The files that a scan of this source would find now. Nothing is queued."""
        allow_private = self._intake.check_url(project_id, url)
        return self._sources.read(project_id, url, selection, allow_private=allow_private, limits=_PREVIEW_LIMITS)

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Subscription]:
        return self._store.list(project_id, limit, cursor)

    def download(self, project_id: str, subscription_id: str, who: str) -> Request:
        """Queues a scan of the source now."""
        self.get(project_id, subscription_id)
        return self._intake.scan(project_id, subscription_id, priority=BY_HAND, who=who)

    def tasks(self, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[Request]:
        self.get(project_id, subscription_id)
        return self._requests.of_subscription(project_id, subscription_id, limit, cursor)

    def runs(self, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        """The runs of its schedule, newest first, each with the present state of its scan."""
        self.get(project_id, subscription_id)
        return self.scans.runs(project_id, subscription_id, limit, cursor)

    def delete(self, project_id: str, subscription_id: str, who: str) -> None:
        self.get(project_id, subscription_id)
        now = self._clock()
        line = act(project_id, subscription_id, now, who, "subscription.delete")
        self._store.begin_delete(project_id, subscription_id, now.timestamp(), line)
        some = list(islice(self._open_requests(project_id, subscription_id), CANCELLED_AT_ONCE + 1))
        for request in some[:CANCELLED_AT_ONCE]:
            self._cancel(request, who)
        # A scan may have queued downloads that the index does not show yet: compensation cancels those.
        if len(some) <= CANCELLED_AT_ONCE and not any(request.type == "scan" for request in some):
            self._store.delete(project_id, subscription_id)

    def finish_delete(self, project_id: str, subscription_id: str, who: str = SYSTEM) -> None:
        """Cancels all its open requests, then deletes its records. Idempotent.

        Stops after DELETE_SECONDS. The subscription stays due until it is deleted, so compensation calls this again.
        """
        until = self._monotonic() + DELETE_SECONDS
        left = self._open_requests(project_id, subscription_id)
        with ThreadPoolExecutor(_CANCELS_TOGETHER) as threads:
            while some := list(islice(left, _PAGE)):
                if self._monotonic() >= until:
                    return
                list(threads.map(lambda request: self._cancel(request, who), some))
        self._store.delete(project_id, subscription_id)

    def _open_requests(self, project_id: str, subscription_id: str) -> Iterator[Request]:
        cursor: str | None = None
        while True:
            page = self._requests.of_subscription(project_id, subscription_id, _PAGE, cursor)
            yield from (request for request in page.items if request.status not in TERMINAL)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _cancel(self, request: Request, who: str) -> None:
        try:
            self._control.cancel(request.project_id, request.request_id, who, "its subscription was deleted")
        except (WrongState, RecordNotFound):
            logger.info("the request had ended already", request_id=request.request_id)


class ScanSchedules(Schedules[Subscription, None]):
    """Queues the scans of subscriptions that are due. The subscription is the record of the schedule."""

    record, keys, id_name = Subscription, keys.SUBSCRIPTIONS, "subscription_id"
    work_name, work_prefix, noun = "request_id", "req", "subscription"

    def __init__(self, intake: IngestSubmit, parts: ScheduleParts) -> None:
        super().__init__(parts)
        self._intake = intake

    def _start(self, schedule: Subscription, work_id: str) -> None:
        self._intake.scan(
            schedule.project_id,
            schedule.subscription_id,
            priority=schedule.priority or BY_SCHEDULE,
            who="schedule",
            request_id=work_id,
            extra_writes=self.started_writes(schedule, work_id),
            by_schedule=True,
        )


# --- scan
# `scan`: reads a subscription's list of files and queues downloads of new and changed ones.

_AT_ONCE = 8
_PUT_OFF_NAMED = 10


class Scan:
    def __init__(
        self,
        sources: SourceReader,
        store: SubscriptionStore,
        intake: IngestSubmit,
        projects: Projects,
        credentials: CredentialStore,
        clock: Clock,
        pauses: HostPauses,
    ) -> None:
        self._sources = sources
        self._store = store
        self._intake = intake
        self._projects = projects
        self._credentials = credentials
        self._clock = clock
        self._pauses = pauses

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        subscription = self._store.get(request.project_id, str(request.subscription_id))
        if subscription is None or subscription.status == DELETING:
            raise RecordNotFound(f"the subscription {request.subscription_id} was deleted: there is nothing to scan")
        with self._pauses.kept(subscription.project_id, subscription.source_url):
            found = self._read(step, subscription)
        now = iso(self._clock())
        if found.entries is None:
            return Outcome(
                {"unchanged": True, "listed": 0, "queued": 0},
                [self._store.scanned_write(subscription, found.etag, now)],
            )
        seen = self._store.seen(subscription.project_id, subscription.subscription_id)
        fresh = [
            entry
            for entry in found.entries
            if entry.url not in seen or seen[entry.url].fingerprint != entry.fingerprint
        ]
        put_off: list[str] = []
        if request.payload.get("by_schedule"):
            scan = subscription.scans + 1
            put_off = [entry.url for entry in fresh if entry.url in seen and seen[entry.url].puts_off(entry, scan)]
            fresh = [entry for entry in fresh if entry.url not in set(put_off)]
        # While entries are put off, the list must be read: a 304 would hide them.
        written = self._store.scanned_write(subscription, None if put_off else found.etag, now)
        refused = self._queue_all(step, subscription, fresh)
        result: dict[str, Any] = {"listed": found.listed, "queued": len(fresh) - refused, "refused": refused}
        if put_off:
            result |= {"put_off": len(put_off), "put_off_entries": put_off[:_PUT_OFF_NAMED]}
        if found.skipped:
            result |= {"skipped": len(found.skipped), "skipped_entries": found.named}
        return Outcome(result | {"format": found.format}, [written])

    def _read(self, step: Step, subscription: Subscription) -> SourceList:
        allow_private = self._projects.get(subscription.project_id).allow_private_urls
        credential = None
        if subscription.credentials:
            credential = self._credentials.get(subscription.project_id, subscription.credentials)
            credential.require(subscription.source_url, plain_text=allow_private)
        return self._sources.read(
            subscription.project_id,
            subscription.source_url,
            subscription.selection,
            etag=subscription.known_etag,
            credential=credential,
            allow_private=allow_private,
            on_page=lambda: step.heartbeat({}),
        )

    def _queue_all(self, step: Step, subscription: Subscription, fresh: list[Entry]) -> int:
        """Queues downloads, several in parallel: a list may have thousands. Returns how many URLs were refused."""
        refused = 0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                # Spread evenly over the lanes, so that as many run at once as the subscription allows.
                lanes = (number % subscription.concurrency for number in range(len(fresh)))
                asked = pool.map(lambda entry, lane: self._queue(step, subscription, entry, lane), fresh, lanes)
                for number, queued in enumerate(asked):
                    refused += not queued
                    step.heartbeat({"new": len(fresh), "queued": number + 1 - refused})
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return refused

    def _queue(self, step: Step, subscription: Subscription, entry: Entry, lane: int) -> bool:
        """False for a URL that may not be fetched: one bad entry does not stop the others."""
        announced = Announcement(
            subscription.biz_id, subscription.app_id, entry.path, entry.name, entry.signature, entry.size
        )
        try:
            self._intake.download(
                subscription.project_id,
                announced,
                entry.url,
                credentials=subscription.credentials,
                channel=step.request.channel,
                priority=step.request.priority,
                fingerprint=entry.fingerprint,
                politeness=subscription.politeness,
                subscription_id=subscription.subscription_id,
                lane=lane,
                extra_writes=self._store.seen_writes(subscription, entry),
            )
        except UrlNotAllowed:
            return False
        except Conflict as error:
            self._again_or_gone(subscription, error)
        return True

    def _again_or_gone(self, subscription: Subscription, error: Conflict) -> None:
        """LeaseLost if the subscription was deleted. Otherwise an earlier run of this scan has queued the entry."""
        present = self._store.get(subscription.project_id, subscription.subscription_id)
        if present is None or present.status == DELETING:
            raise LeaseLost("the subscription was deleted") from error
