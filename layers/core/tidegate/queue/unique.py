"""Requests that are to exist once: while one with a key is not over, asking again gives that one."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, put
from tidegate.common.ids import Clock, new_id
from tidegate.errors import Busy
from tidegate.queue.model import Request
from tidegate.queue.store import RequestStore

_KEPT_SECONDS = 90 * 86400
_TRIES = 4


class UniqueRequests:
    def __init__(self, table: Table, requests: RequestStore, clock: Clock) -> None:
        self._table = table
        self._requests = requests
        self._clock = clock

    def submit(self, project_id: str, dedupe_key: str, make: Callable[[str, Write], Request]) -> Request:
        """The present request with the key, or what `make(request_id, write)` submits together with the write."""
        key = keys.dedupe(project_id, dedupe_key)
        for _ in range(_TRIES):
            held = self._table.get(key, consistent=True)
            known = self._requests.get(project_id, str(held["request_id"])) if held else None
            if known is not None and not known.is_over:
                return known
            now = self._clock()
            request_id = new_id("req", now)
            item = key | {"request_id": request_id, "expires_at": int(now.timestamp()) + _KEPT_SECONDS}
            if held:
                write = put(item, "#request_id = :held", held=held["request_id"])
            else:
                write = put(item, "attribute_not_exists(#pk)")
            try:
                return make(request_id, write)
            except ConditionFailed:
                # Another call with the key was faster, or something else of the request changed: look again.
                continue
        raise Busy("requests with this dedupe_key are being made by many at once")
