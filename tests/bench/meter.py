"""What a piece of work uses, in the units that AWS bills: requests, capacity units, Lambda's seconds."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.bench import prices
from tests.support.calls import SERVICES
from tests.support.moto_cloud import MotoCloud

_GB = 0.5
_INDEXES = ("gsi1pk", "gsi2pk", "due_pk")
_READS = {"GetItem", "BatchGetItem", "Query"}


@dataclass
class Meter:
    used: Counter[str] = field(default_factory=Counter)

    def dollars(self, times: float = 1) -> float:
        total: float = sum(amount * getattr(prices, unit) for unit, amount in self.used.items())
        return times * total

    def add(self, unit: str, amount: float) -> None:
        self.used[unit] += amount  # type: ignore[assignment]


def _write_units(operation: str, body: dict[str, Any]) -> float:
    if operation == "TransactWriteItems":
        # Billed twice, one for preparing and one for committing.
        return 2 * sum(_units(next(iter(part.values()))) for part in body["TransactItems"])
    if operation == "BatchWriteItem":
        return sum(_units(part.get("PutRequest", {})) for parts in body["RequestItems"].values() for part in parts)
    return _units(body)


def _units(write: dict[str, Any]) -> float:
    """An item is written into each index that it has a key of, too; an update is taken for 1 KB and one index."""
    item = write.get("Item")
    if item is None:
        return 2 if "UpdateExpression" in write else 1
    kilobytes = math.ceil(len(json.dumps(item)) * 0.7 / 1024)
    return kilobytes * (1 + sum(name in item for name in _INDEXES))


@contextmanager
def metered(cloud: MotoCloud) -> Iterator[Meter]:
    """Lambda's time is what the handler took here, on moto: about 10 ms for each call, more than AWS itself takes."""
    meter = Meter()
    invoke = cloud.invoke

    def timed(name: str, event: Any) -> Any:
        began = time.perf_counter()
        try:
            return invoke(name, event)
        finally:
            meter.add("LAMBDA_REQUEST", 1)
            meter.add("LAMBDA_GB_SECOND", _GB * (time.perf_counter() - began))

    def count(model: Any, params: Any, **_: Any) -> None:
        service, operation = model.service_model.service_name, model.name
        if service == "dynamodb":
            body = json.loads(params["body"])
            unit = "DYNAMODB_READ" if operation in _READS else "DYNAMODB_WRITE"
            meter.add(unit, 1 if operation in _READS else _write_units(operation, body))
        elif service == "sqs":
            # Sent, then received and deleted by the mapping, ten to a call.
            meter.add("SQS_REQUEST", 1.2)
        elif service == "sns":
            meter.add("SNS_PUBLISH", 1)
        elif service == "s3":
            meter.add("S3_PUT" if operation.startswith(("Put", "Copy", "Create", "Upload", "List")) else "S3_GET", 1)

    clients = [getattr(cloud.app, name) for name in SERVICES]
    for client in clients:
        client.meta.events.register("before-call", count)
    with patch.object(cloud, "invoke", timed):
        yield meter
    for client in clients:
        client.meta.events.unregister("before-call", count)
