"""Calls for operators: the queue, overdue work, statistics, the audit trail, callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate_client.http import path_part
from tidegate_client.model import Model, Page
from tidegate_client.models import Request, Ticket
from tidegate_client.resources.paging import Resource


class Queue(Resource):
    """The channels of the queue and the requests in them."""

    def stats(self) -> Model:
        return Model(self._http.get("/v1/queue/stats"))

    def list(
        self,
        *,
        channel: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Request]:
        return self._page("/v1/queue", {"channel": channel, "status": status}, limit, cursor, Request)

    def capacity(self, capacities: Mapping[str, int]) -> Model:
        return Model(self._http.act("/v1/queue/capacity", capacities, idempotent=True))

    def pause(self, scope: str = "all") -> Model:
        return Model(self._http.act("/v1/queue/pause", {"scope": scope}, idempotent=True))

    def resume(self, scope: str = "all") -> Model:
        return Model(self._http.act("/v1/queue/resume", {"scope": scope}, idempotent=True))

    def host_pauses(self) -> Model:
        """Lists the origins that asked for a pause. Downloads and scans from them wait until it ends."""
        return Model(self._http.get("/v1/host-pauses"))

    def clear_host_pause(self, origin: str) -> None:
        """Ends the pause of an origin, such as `https://files.example.com`."""
        self._http.call("DELETE", f"/v1/host-pauses/{path_part(origin.replace('//', '', 1))}")


class Compensation(Resource):
    """The periodic poll that finds overdue work and starts it."""

    def get(self) -> Model:
        return Model(self._http.get("/v1/compensation"))

    def trigger(self) -> Model:
        return Model(self._http.act("/v1/compensation/trigger"))


class Callbacks(Resource):
    """Callbacks that were sent or wait to be sent, and the result of each."""

    def list(
        self, *, task_id: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[dict[str, Any]]:
        return self._page("/v1/callbacks", {"task_id": task_id}, limit, cursor)

    def redeliver(self, delivery_id: str) -> Model:
        return Model(self._http.act(f"/v1/callbacks/{path_part(delivery_id)}/redeliver"))


class Operations(Resource):
    """Statistics, the audit trail, the archive, clean-up, and the state of the deployment."""

    def stats(self, since: str | None = None) -> Model:
        return Model(self._http.get("/v1/stats", {"since": since}))

    def audit(
        self,
        record: str | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[dict[str, Any]]:
        """Lists every change and the key that made it, newest first. `actor` is a key_id. Filters can be combined."""
        wanted = {"record": record, "actor": actor, "action": action, "since": since, "until": until}
        return self._page("/v1/audit", wanted, limit, cursor)

    def archive(
        self,
        day: str,
        *,
        type: str | None = None,
        status: str | None = None,
        request_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Request]:
        """Lists the requests that were archived on a day, such as `2026-11-16`."""
        wanted = {"day": day, "type": type, "status": status, "request_id": request_id}
        return self._page("/v1/archive", wanted, limit, cursor, Request)

    def cleanup(self, *, confirm: str | None = None) -> Model:
        """Deletes everything that is past its retention, as the daily schedule does. Needs an admin key.

        `stopped` in the answer is the last daily run that deleted nothing because it would have deleted too much. To
        let the next daily run delete that, pass its `run_id` as `confirm`."""
        body = {"confirm": confirm} if confirm else None
        return Model(self._http.act("/v1/cleanup", body, idempotent=True))

    def system(self) -> Model:
        """Returns the version, parameters and alarms of the deployment. Needs an admin key."""
        return Model(self._http.get("/v1/system"))

    def freeze(self, reason: str) -> Model:
        """Freezes the deployment: submits are accepted but wait, and running work ends or is suspended.
        Needs an admin key."""
        return Model(self._http.act("/v1/ops/freeze", {"reason": reason}, idempotent=True))

    def thaw(self) -> Model:
        """Ends a freeze and starts everything that is due. Needs an admin key."""
        return Model(self._http.act("/v1/ops/thaw", idempotent=True))

    def reconcile(self) -> Model:
        """Stops the executions that the table does not know, after the table was restored from a backup. Needs an admin
        key.

        The deployment must be frozen. Call it again while the answer has `more`."""
        return Model(self._http.act("/v1/ops/reconcile", idempotent=True))

    def ticket(self) -> Ticket:
        """Returns a ticket for one WebSocket connection, valid for a minute."""
        return Ticket(self._http.act("/v1/ws-tickets", idempotent=True))

    def health(self) -> Model:
        return Model(self._http.get("/healthz"))
