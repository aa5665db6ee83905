"""Callbacks: checks their URLs at submission, delivers them with retries, lists and redelivers them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.aws.clients import Message, SqsQueue
from tidegate.common.ids import Clock, iso
from tidegate.common.sequences import Listed
from tidegate.errors import DomainError, NotSent, RecordNotFound, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits, error_for
from tidegate.notifications.deliveries import (
    DEAD,
    GIVE_UP_SECONDS,
    PENDING,
    Attempt,
    CallbackDelivery,
    CircuitBreaker,
    DeliveryStore,
    after,
    new_delivery,
    redelivered,
)
from tidegate.notifications.notices import webhook_body
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import Project
from tidegate.projects.secrets import Signer


class CallbackQueue:
    """The queue of waiting callbacks, and the dead-letter queue of callbacks that were given up."""

    def __init__(self, waiting: SqsQueue, dead: SqsQueue) -> None:
        self._waiting = waiting
        self._dead = dead

    def later(self, delivery: CallbackDelivery, seconds: float) -> None:
        """Queues a message that starts the next attempt after `seconds`. SQS delays a message by 15 minutes at most."""
        body = {"project_id": delivery.project_id, "delivery_id": delivery.delivery_id, "due": delivery.next_attempt_at}
        self._waiting.send(Message(body, delay_seconds=max(0, math.ceil(seconds))))

    def send_to_dead_letters(self, delivery: CallbackDelivery) -> None:
        last = delivery.attempts[-1]
        body = {
            "project_id": delivery.project_id,
            "delivery_id": delivery.delivery_id,
            "record_id": delivery.record_id,
            "type": delivery.kind,
            "url": delivery.url,
            "attempts": len(delivery.attempts),
            "error": last.error or f"answered {last.status}",
        }
        self._dead.send(Message(body))


class Callbacks:
    """What the API does with callbacks: checks a URL at submission, lists deliveries, and delivers a callback again."""

    def __init__(
        self,
        store: DeliveryStore,
        queue: Callable[[], CallbackQueue],
        http: Callable[[], SafeHttp],
        project_of: Callable[[str], Project],
        clock: Clock,
    ) -> None:
        self._store = store
        self._queue = queue
        self._http = http
        self._project_of = project_of
        self._clock = clock

    def check(self, project_id: str, urls: Mapping[str, str | None]) -> None:
        """Raises UrlNotAllowed if a callback to one of these URLs would be refused.

        `urls`: the URL in each field of the request. A URL of None is not checked.
        """
        given = {field: url for field, url in urls.items() if url}
        if not given:
            return
        refused = self._http().refused_urls(
            given.values(), allow_private=self._project_of(project_id).allow_private_urls, project_id=project_id
        )
        for field, url in given.items():
            if error := refused.get(url):
                raise UrlNotAllowed(error.detail, errors=[{"loc": ["body", field], "msg": error.detail}]) from error

    def get(self, project_id: str, delivery_id: str) -> CallbackDelivery:
        delivery = self._store.get(project_id, delivery_id)
        if delivery is None:
            raise RecordNotFound(f"this project has no callback with the id {delivery_id}")
        return delivery

    def list(
        self, project_id: str, *, record_id: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[CallbackDelivery]:
        return self._store.list(project_id, record_id=record_id, state=state, limit=limit, cursor=cursor)

    def redrive(self, project_id: str, delivery_id: str) -> None:
        """Delivers a callback again, but only if it is still dead.

        Called when an operator moved its dead letter back to the queue.
        """
        delivery = self._store.get(project_id, delivery_id)
        if delivery is not None and delivery.state == DEAD:
            self.redeliver(project_id, delivery_id)

    def redeliver(self, project_id: str, delivery_id: str, who: str = SYSTEM) -> CallbackDelivery:
        """Starts the delivery again, with another day of attempts.

        The delivery keeps its id, so receivers can detect repeats.
        """
        now = self._clock()
        delivery = redelivered(self.get(project_id, delivery_id), now)
        line = act(project_id, delivery_id, now, who, "callback.redeliver", f"callback of {delivery.record_id}")
        self._store.restart(delivery, now.timestamp(), line)
        self._queue().later(delivery, 0)
        return delivery


logger = Logger(service="tidegate", child=True)

LEASE_SECONDS = 45.0


class Deliverer:
    """Delivers callbacks to their receivers.

    A failed callback is retried, but never the work that the callback reports.
    """

    def __init__(
        self,
        store: DeliveryStore,
        circuit_breaker: CircuitBreaker,
        queue: CallbackQueue,
        http: SafeHttp,
        sign: Signer,
        project_of: Callable[[str], Project],
        clock: Clock,
        chance: Callable[[], float],
        timeout_seconds: float,
        frozen_for: Callable[[], float],
    ) -> None:
        """`frozen_for`: returns the seconds until a delivery is tried again. 0 if the system is not frozen."""
        self._store = store
        self._circuit_breaker = circuit_breaker
        self._queue = queue
        self._http = http
        self._sign = sign
        self._project_of = project_of
        self._clock = clock
        self._chance = chance
        self._frozen_for = frozen_for
        self._limits = Limits(connect=timeout_seconds, read=timeout_seconds, total=timeout_seconds)

    def accept(self, message: Mapping[str, Any]) -> None:
        """Delivers the callback of a notice from the topic. The topic may send the notice more than once."""
        now = self._clock()
        lease = now.timestamp() + LEASE_SECONDS
        noticed_at = datetime.fromisoformat(message["timestamp"])
        delivery = new_delivery(message, webhook_body(message["type"], noticed_at, message["data"]), now)
        if self._store.add(delivery, lease):
            self._run(delivery, lease)
        else:
            self._claim_and_run(delivery.project_id, delivery.delivery_id)

    def resume(self, project_id: str, delivery_id: str, due: float) -> None:
        """Makes the attempt that was planned for the time `due`.

        If that time is still in the future, queues the attempt again. This is needed because SQS delays a message by 15
        minutes at most.
        """
        now = self._clock().timestamp()
        if due > now:
            delivery = self._store.get(project_id, delivery_id)
            # Only the message for the next attempt is sent again; duplicates and outdated ones end here.
            if delivery and delivery.state == PENDING and delivery.next_attempt_at == due:
                self._queue.later(delivery, due - now)
            return
        self._claim_and_run(project_id, delivery_id)

    def _claim_and_run(self, project_id: str, delivery_id: str) -> None:
        now = self._clock().timestamp()
        claimed = self._store.claim(project_id, delivery_id, now, now + LEASE_SECONDS)
        if claimed:
            self._run(claimed, now + LEASE_SECONDS)

    def _run(self, delivery: CallbackDelivery, lease: float) -> None:
        now = self._clock().timestamp()
        if frozen := self._frozen_for():
            # The day in which a callback is tried is extended by the time of the freeze.
            waits = replace(delivery, next_attempt_at=now + frozen, gives_up_at=delivery.gives_up_at + frozen)
            self._settle(waits, lease)
            return
        entry = self._circuit_breaker.enter(delivery.project_id, delivery.host, now)
        if entry.wait:
            self._settle(self._put_off(delivery, entry.wait), lease)
            return
        began = time.monotonic()
        try:
            attempt, retry_after = self._try(delivery)
        except NotSent as held_back:
            # The host has not seen it, so it is not an attempt and not the host's failure.
            self._circuit_breaker.give_back(
                delivery.project_id,
                delivery.host,
                self._clock().timestamp(),
                waited=time.monotonic() - began,
                entry=entry,
            )
            self._settle(self._put_off(delivery, held_back.retry_after or 1.0, held_back), lease)
            return
        ended = self._clock()
        self._circuit_breaker.leave(
            delivery.project_id,
            delivery.host,
            ended.timestamp(),
            blamed=attempt.blames_host,
            took=attempt.duration_ms / 1000,
            entry=entry,
            timed_out=attempt.timed_out,
        )
        logger.info("callback", delivery_id=delivery.delivery_id, status=attempt.status, error=attempt.error)
        self._settle(after(delivery, attempt, ended, retry_after=retry_after, chance=self._chance()), lease)

    def _put_off(self, delivery: CallbackDelivery, wait: float, held_back: NotSent | None = None) -> CallbackDelivery:
        """Returns the delivery, postponed by `wait` seconds. That does not count as an attempt.

        After the day for its attempts, the delivery is given up. A delivery that was never tried gets another day
        instead.
        """
        now = self._clock()
        if now.timestamp() >= delivery.gives_up_at and not delivery.tries:
            delivery = replace(delivery, gives_up_at=now.timestamp() + GIVE_UP_SECONDS)
        if now.timestamp() >= delivery.gives_up_at:
            code, detail = (
                "host_in_trouble",
                "not sent yet, because other callbacks to this host or of this project failed or were slow",
            )
            if held_back:
                code, detail = held_back.code, held_back.detail
            refused = Attempt(iso(now), 0, error=code, detail=detail)
            return after(delivery, refused, now, retry_after=None, chance=0)
        at = now.timestamp() + wait + self._chance()
        return replace(delivery, next_attempt_at=min(at, delivery.gives_up_at))

    def _settle(self, delivery: CallbackDelivery, lease: float) -> None:
        now = self._clock().timestamp()
        if delivery.state == DEAD:
            # Send to the dead-letter queue before marking it dead: a crash in between duplicates, never loses.
            self._queue.send_to_dead_letters(delivery)
        if not self._store.settle(delivery, lease, now):
            logger.warning("the lease of a callback was lost to another run", delivery_id=delivery.delivery_id)
        elif delivery.state == PENDING:
            self._queue.later(delivery, delivery.next_attempt_at - now)

    def _try(self, delivery: CallbackDelivery) -> tuple[Attempt, float | None]:
        at, started = self._clock(), time.monotonic()
        status: int | None = None
        waited = 0.0
        error: DomainError | None
        try:
            project = self._project_of(delivery.project_id)
            body = delivery.body.encode()
            headers = self._sign(project, delivery.delivery_id, at, body, url=delivery.url)
            with self._http.stream(
                "POST",
                delivery.url,
                headers={"content-type": "application/json", **headers},
                body=body,
                allow_private=project.allow_private_urls,
                limits=self._limits,
                redirects=0,
                project_id=delivery.project_id,
            ) as answer:
                status, waited = answer.status, answer.waited
                error = error_for(status, answer.headers, at)
        except NotSent:
            raise
        except DomainError as failure:
            error = failure
        took = round((time.monotonic() - started - waited) * 1000)
        if error is None:
            return Attempt(iso(at), took, status), None
        return Attempt(iso(at), took, status, error.code, error.detail[:300]), error.retry_after
