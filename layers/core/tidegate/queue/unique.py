"""Requests with a dedupe key: while one has not ended, submitting another with the same key returns it."""

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
        """The request that has the key, or the one that `make(request_id, write)` submits together with the write."""
        key = keys.dedupe(project_id, dedupe_key)
        for _ in range(_TRIES):
            held = self._table.get(key, consistent=True)
            request = self._requests.get(project_id, str(held["request_id"])) if held else None
            if request is not None and not request.is_over:
                return request
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
                # Another call with the key was faster, or another condition of the submission failed: read again.
                continue
        raise Busy("other calls submit requests with this dedupe_key at the same time: try again")
