"""`scan`: reads a subscription's list of files and queues downloads of new and changed ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidegate.common.ids import Clock, iso
from tidegate.errors import Conflict, LeaseLost, RecordNotFound, UrlNotAllowed
from tidegate.files.library import Announcement
from tidegate.ingest.feeds.entry import Entry
from tidegate.ingest.host_pauses import HostPauses
from tidegate.ingest.ports import Outcome, Step
from tidegate.ingest.source_list import SourceList, SourceReader
from tidegate.ingest.store import SubscriptionStore
from tidegate.ingest.submit import IngestSubmit
from tidegate.ingest.subscription_model import DELETING, Subscription
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.projects import Projects

_AT_ONCE = 8


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
        written = self._store.scanned_write(subscription, found.etag, iso(self._clock()))
        if found.entries is None:
            return Outcome({"unchanged": True, "listed": 0, "queued": 0}, [written])
        seen = self._store.seen(subscription.project_id, subscription.subscription_id)
        fresh = [entry for entry in found.entries if seen.get(entry.url) != entry.fingerprint]
        refused = self._queue_all(step, subscription, fresh)
        result: dict[str, Any] = {"listed": found.listed, "queued": len(fresh) - refused, "refused": refused}
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
