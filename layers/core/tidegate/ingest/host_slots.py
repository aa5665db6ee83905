"""Limits how many downloads a project runs from one host at once, over all functions. Each holds a slot as a lease."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock
from tidegate.errors import NotSent
from tidegate.http.urls import host_of, read_url
from tidegate.ingest.ports import Heartbeat
from tidegate.queue.model import Request

# Renewed while bytes come. So the slot of a function that died is free after this time.
LEASE_SECONDS = 180
_RENEW_SECONDS = 30
# A request that found no slot is retried after this time, or after the delay of its type if that is longer.
_RETRY_SECONDS = 15


class HostSlots:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def held(self, request: Request, url: str, most: int | None, heartbeat: Heartbeat) -> Iterator[Heartbeat]:
        """Holds a slot, and yields a heartbeat that also renews it. NotSent if `most` downloads run already.

        The slot is released at the end. The heartbeat raises NotSent if another download took the slot after a long
        freeze.
        """
        if most is None:
            yield heartbeat
            return
        host = host_of(read_url(url))
        key = self._take(request, host, most)
        renewed_at = self._now()

        def heartbeat_and_renew(progress: Mapping[str, Any]) -> None:
            nonlocal renewed_at
            heartbeat(progress)
            if self._now() - renewed_at >= _RENEW_SECONDS:
                if not self._write(request, key, "#owner = :me"):
                    raise _no_slot(host, most)
                renewed_at = self._now()

        try:
            yield heartbeat_and_renew
        finally:
            self._table.try_write(
                update(
                    key,
                    removes=("owner", "attempt", "until"),
                    condition="#owner = :me AND #attempt = :attempt",
                    me=request.request_id,
                    attempt=request.attempt,
                )
            )

    def _take(self, request: Request, host: str, most: int) -> dict[str, str]:
        free = "attribute_not_exists(#owner) OR #until <= :now OR #owner = :me"
        for number in range(most):
            key = keys.host_slot(request.project_id, host, number)
            if self._write(request, key, free, now=int(self._now())):
                return key
        raise _no_slot(host, most)

    def _write(self, request: Request, key: dict[str, str], condition: str, **values: Any) -> bool:
        until = int(self._now()) + LEASE_SECONDS
        sets = {"owner": request.request_id, "attempt": request.attempt, "until": until, "expires_at": until + 86400}
        return self._table.try_write(update(key, sets, condition=condition, me=request.request_id, **values))

    def _now(self) -> float:
        return self._clock().timestamp()


def _no_slot(host: str, most: int) -> NotSent:
    error = NotSent(f"{most} downloads from {host} run already (politeness.host_downloads)", retry_after=_RETRY_SECONDS)
    error.put_off = True
    return error
