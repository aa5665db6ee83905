"""Remote sources of files: made, looked at by hand or on schedule, deleted with what they have queued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.common.listing import Listed
from tidegate.common.schedules import next_run
from tidegate.errors import Conflict, QuotaExceeded, RecordNotFound, WrongState
from tidegate.ingest.store import SubscriptionStore
from tidegate.ingest.submit import IngestSubmit
from tidegate.ingest.subscription_model import ACTIVE, Subscription
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.queue.control import Control
from tidegate.queue.model import TERMINAL, Request
from tidegate.queue.queue import RequestQueue
from tidegate.queue.store import RequestStore

logger = Logger(service="tidegate", child=True)

# A person asked: 1 to 3. The schedule asks: 4 to 6.
_BY_HAND, _BY_SCHEDULE = 3, 5
_SCANS_TOGETHER = 8
# What one call spends on cancelling a deleted subscription's requests; compensation goes on with the rest.
DELETE_SECONDS = 5.0


class Subscriptions:
    def __init__(
        self,
        store: SubscriptionStore,
        requests: RequestStore,
        queue: RequestQueue,
        control: Control,
        intake: IngestSubmit,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._requests = requests
        self._queue = queue
        self._control = control
        self._intake = intake
        self._clock = clock
        self._monotonic = monotonic

    def create(self, described: Subscription, *, who: str = SYSTEM) -> Subscription:
        """`described` has everything but its id, times and next run."""
        self._intake.check_url(described.project_id, described.source_url)
        now = self._clock()
        due_at = int(next_run(described.schedule, now).timestamp()) if described.schedule else None
        made = replace(described, subscription_id=new_id("sub", now), created_at=iso(now), due_at=due_at)
        why = named_at(made.name, made.source_url)
        line = act(made.project_id, made.subscription_id, now, who, "subscription.create", why)
        self._store.add(made, line)
        return made

    def get(self, project_id: str, subscription_id: str) -> Subscription:
        found = self._store.get(project_id, subscription_id)
        if found is None or found.status != ACTIVE:
            raise RecordNotFound("no such subscription")
        return found

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Subscription]:
        return self._store.list(project_id, limit, cursor)

    def download(self, project_id: str, subscription_id: str, who: str) -> Request:
        """Looks at the source now, and queues what is new or changed."""
        self.get(project_id, subscription_id)
        return self._intake.scan(project_id, subscription_id, priority=_BY_HAND, who=who)

    def tasks(self, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[Request]:
        self.get(project_id, subscription_id)
        return self._requests.of_subscription(project_id, subscription_id, limit, cursor)

    def fire(self) -> int:
        """Once a minute: queues a scan for each subscription whose time has come."""
        due = list(self._store.due(self._clock().timestamp()))
        if len(due) <= 1:
            return sum(map(self._fire, due))
        with ThreadPoolExecutor(_SCANS_TOGETHER) as threads:
            return sum(threads.map(self._fire, due))

    def _fire(self, subscription: Subscription) -> bool:
        now = self._clock()
        due_at = int(next_run(str(subscription.schedule), now).timestamp())
        if self._still_scanning(subscription):
            self._store.skip(subscription, due_at)
            return False
        name = digest(subscription.subscription_id, str(subscription.due_at), length=26)
        request_id = f"req-{name}"
        fired = self._store.fired_write(subscription, due_at, request_id)
        try:
            self._intake.scan(
                subscription.project_id,
                subscription.subscription_id,
                priority=_BY_SCHEDULE,
                who="schedule",
                request_id=request_id,
                extra_writes=[fired],
            )
        except (Conflict, RecordNotFound):
            # Another invocation fired it, or it was deleted meanwhile.
            return False
        except QuotaExceeded as error:
            # Its project's queue is full: this run is left out, and other projects' scans go on.
            logger.warning(
                "a scheduled scan was skipped", subscription_id=subscription.subscription_id, why=error.detail
            )
            self._store.skip(subscription, due_at)
            return False
        return True

    def _still_scanning(self, subscription: Subscription) -> bool:
        if not subscription.last_request_id:
            return False
        try:
            return not self._queue.get(subscription.project_id, subscription.last_request_id).is_over
        except RecordNotFound:
            return False

    def delete(self, project_id: str, subscription_id: str, who: str) -> None:
        self.get(project_id, subscription_id)
        now = self._clock()
        line = act(project_id, subscription_id, now, who, "subscription.delete")
        self._store.begin_delete(project_id, subscription_id, now.timestamp(), line)
        self.finish_delete(project_id, subscription_id, who)

    def finish_delete(self, project_id: str, subscription_id: str, who: str = SYSTEM) -> None:
        """Cancels everything that waits or runs, then forgets it. Any number of times.

        The subscription is due until then: what one call has no time for, compensation goes on with.
        """
        until = self._monotonic() + DELETE_SECONDS
        for request in self._open_requests(project_id, subscription_id):
            if self._monotonic() >= until:
                return
            self._cancel(request, who)
        self._store.delete(project_id, subscription_id)

    def _open_requests(self, project_id: str, subscription_id: str) -> Iterator[Request]:
        cursor: str | None = None
        while True:
            page = self._requests.of_subscription(project_id, subscription_id, 100, cursor)
            yield from (request for request in page.items if request.status not in TERMINAL)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _cancel(self, request: Request, who: str) -> None:
        try:
            self._control.cancel(request.project_id, request.request_id, who, "its subscription was deleted")
        except (WrongState, RecordNotFound):
            logger.info("over already", request_id=request.request_id)
