"""Measures work in the units that AWS bills: requests, capacity units, state transitions, Lambda seconds."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

from moto.dynamodb.models import dynamodb_backends

from tests.bench import prices
from tests.support.calls import SERVICES
from tests.support.moto.cloud import MotoCloud
from tests.support.moto.resources import ACCOUNT, REGION
from tests.support.template import directory_of, functions, load_template

# The two keys of each index.
_INDEXES = (("gsi1pk", "gsi1sk"), ("gsi2pk", "gsi2sk"), ("due_pk", "due_at"))
_READS = {"GetItem", "BatchGetItem", "Query"}
_FREE_OF_CHARGE = ("Delete", "Abort")
_MESSAGES_A_CALL = 10


@dataclass
class Meter:
    used: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def dollars(self, times: float = 1) -> float:
        total: float = sum(amount * getattr(prices, unit) for unit, amount in self.used.items())
        return times * total

    def add(self, unit: str, amount: float) -> None:
        with self._lock:
            self.used[unit] += amount  # type: ignore[assignment]

    def take(self, other: Meter, times: float = 1) -> None:
        for unit, amount in other.used.items():
            self.add(unit, times * amount)

    def call(self, name: str) -> None:
        with self._lock:
            self.calls[name] += 1


@cache
def _gigabytes() -> dict[str, float]:
    """Returns the memory of every function in GB, by its directory."""
    default = load_template()["Globals"]["Function"]["MemorySize"]
    return {directory_of(each): each.get("MemorySize", default) / 1024 for each in functions().values()}


def _write_units(operation: str, body: dict[str, Any]) -> float:
    if operation == "TransactWriteItems":
        # Billed twice: for preparing and for committing.
        parts = [next(iter(part.items())) for part in body["TransactItems"]]
        return 2 * sum(1 if kind == "ConditionCheck" else _units(part) for kind, part in parts)
    if operation == "BatchWriteItem":
        writes = [
            next(iter(part.values())) | {"TableName": n} for n, parts in body["RequestItems"].items() for part in parts
        ]
        return sum(map(_units, writes))
    return _units(body)


def _units(write: dict[str, Any]) -> float:
    """Returns the units of a write: a KB of the larger of the items before and after it, in the table and again in each
    index that the item is in (all indexes hold all attributes); twice in an index whose keys change.

    docs.aws.amazon.com/amazondynamodb/latest/developerguide/GSI.html, "Write capacity units".
    """
    before = _stored(write)
    names = set(write.get("ExpressionAttributeNames", {}).values())
    if "Item" in write:
        after = write["Item"]
    elif "UpdateExpression" in write:
        # Its values are added: it may replace some, so this is an upper limit. Removed keys still count as there.
        after = before | {f":{name}": value for name, value in write.get("ExpressionAttributeValues", {}).items()}
        after |= {name: {} for name in names}
    else:
        after = before
    size = math.ceil(max(1, stored_bytes(before), stored_bytes(after)) / 1024)
    return size * (1 + sum(_index_writes(before, after, keys, names) for keys in _INDEXES))


def _index_writes(before: dict[str, Any], after: dict[str, Any], keys: tuple[str, str], changed: set[str]) -> int:
    was, stays = keys[0] in before, keys[0] in after
    if was and stays:
        moves = bool(changed & set(keys)) or any(before.get(key) != after.get(key) for key in keys)
        return 2 if moves else 1
    return int(was or stays)


def _stored(write: dict[str, Any]) -> dict[str, Any]:
    """The item that a write is about to replace, change or delete."""
    key = write.get("Key") or {name: write["Item"][name] for name in ("pk", "sk")}
    region = dynamodb_backends[ACCOUNT][REGION]
    found = region.get_item(write["TableName"], key)
    return dict(found.to_json()["Attributes"]) if found is not None else {}


def stored_bytes(item: dict[str, Any]) -> float:
    """Returns about the item's size without the type tags and quotes of its JSON."""
    return len(json.dumps(item, default=str)) * 0.7


def _read_units(operation: str, body: dict[str, Any]) -> float:
    """Returns the units of a read below 4 KB: half a unit, or a whole one if it is consistent."""
    if operation == "BatchGetItem":
        return sum(len(part["Keys"]) * _one_read(part) for part in body["RequestItems"].values())
    return _one_read(body)


def _one_read(body: dict[str, Any]) -> float:
    return 1 if body.get("ConsistentRead") else 0.5


@contextmanager
def metered(cloud: MotoCloud) -> Iterator[Meter]:
    """Yields a meter of the block. Lambda time is that of the handler on moto, about 10 ms a call: more than on AWS."""
    meter = Meter()
    invoke, settle = cloud.invoke, cloud._settle

    def timed(name: str, event: Any) -> Any:
        began = time.perf_counter()
        try:
            return invoke(name, event)
        finally:
            meter.add("LAMBDA_REQUEST", 1)
            meter.add("LAMBDA_GB_SECOND", _gigabytes()[name] * (time.perf_counter() - began))

    def settled(queue: str, batch: list[Any], failed: set[str]) -> None:
        # The event source mapping receives and deletes messages, ten to a call.
        meter.add("SQS_REQUEST", 2 * math.ceil(len(batch) / _MESSAGES_A_CALL))
        settle(queue, batch, failed)

    def count(model: Any, params: Any, **_: Any) -> None:
        service, operation = model.service_model.service_name, model.name
        meter.call(f"{service}.{operation}")
        if service == "dynamodb" and operation in _READS:
            meter.add("DYNAMODB_READ", _read_units(operation, json.loads(params["body"])))
        elif service == "dynamodb":
            meter.add("DYNAMODB_WRITE", _write_units(operation, json.loads(params["body"])))
        elif service == "sqs":
            meter.add("SQS_REQUEST", 1)
        elif service == "sns":
            meter.add("SNS_PUBLISH", 1)
        elif service == "s3" and not operation.startswith(_FREE_OF_CHARGE):
            meter.add("S3_GET" if operation.startswith(("Get", "Head")) else "S3_PUT", 1)

    clients = [getattr(cloud.app, name) for name in SERVICES]
    for client in clients:
        client.meta.events.register("before-call", count)
    with patch.object(cloud, "invoke", timed), patch.object(cloud, "_settle", settled):
        yield meter
    for client in clients:
        client.meta.events.unregister("before-call", count)


def transitions(cloud: MotoCloud) -> int:
    """Returns the state transitions of all executions so far. Needs a cloud with running machines."""
    sfn = cloud.client("stepfunctions")
    return sum(
        event["type"].endswith("StateEntered")
        for machine in cloud.names.machines.values()
        for execution in sfn.list_executions(stateMachineArn=machine)["executions"]
        for page in sfn.get_paginator("get_execution_history").paginate(executionArn=execution["executionArn"])
        for event in page["events"]
    )
