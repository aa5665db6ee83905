"""Records past their time, found through their own partitions of the sparse index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import delete, update
from tidegate.queue.items import request_from
from tidegate.queue.model import Request


class RetentionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def past(self, now: float, limit: int) -> Iterator[Request]:
        left = limit
        for shard in range(keys.RETENTION_SHARDS):
            if left <= 0:
                return
            bounds = (0, int(now))
            items = self._table.query_all(keys.retention_partition(shard), index="due", sk_between=bounds)
            for item in islice(items, left):
                left -= 1
                yield request_from(item)

    def remove(self, request: Request) -> bool:
        key = keys.request(request.project_id, request.request_id)
        return self._table.try_write(delete(key, "#version = :seen", seen=request.version))

    def expire(self, request: Request, expires_at: float) -> bool:
        key = keys.request(request.project_id, request.request_id)
        sets = {"expired_at": request.expired_at, "expires_at": int(expires_at)}
        removes = keys.DUE_ATTRIBUTES
        return self._table.try_write(
            update(key, sets, removes=removes, condition="#version = :seen", seen=request.version)
        )
