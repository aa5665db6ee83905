"""Requests past their retention time, in partitions of the sparse index that only the clean-up reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import delete, update
from tidegate.queue.items import request_from
from tidegate.queue.model import Request

logger = Logger(service="tidegate", child=True)


class RetentionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def past(self, now: float, limit: int) -> Iterator[Request]:
        """At most `limit` requests whose retention is over. Skips malformed records, which would stop the others."""
        return islice(self._all_past(now), limit)

    def _all_past(self, now: float) -> Iterator[Request]:
        for shard in range(keys.RETENTION_SHARDS):
            partition, bounds = keys.retention_partition(shard), (0, int(now))
            for item in self._table.query_all(partition, index="due", sk_between=bounds):
                try:
                    request = request_from(item)
                except (KeyError, TypeError, ValueError):
                    logger.exception("a record past its retention is malformed and stays", record=item["pk"])
                    continue
                yield request

    def remove(self, request: Request) -> bool:
        key = keys.request(request.project_id, request.request_id)
        return self._table.try_write(delete(key, "#version = :seen", seen=request.version))

    def expire(self, request: Request, expires_at: float) -> bool:
        """Marks the request as expired; the table's TTL removes it at `expires_at`."""
        key = keys.request(request.project_id, request.request_id)
        sets = {"expired_at": request.expired_at, "expires_at": int(expires_at)}
        removes = keys.DUE_ATTRIBUTES
        return self._table.try_write(
            update(key, sets, removes=removes, condition="#version = :seen", seen=request.version)
        )
