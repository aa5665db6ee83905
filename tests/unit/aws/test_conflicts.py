"""AWS refuses a write while another transaction holds the item. moto and MiniStack never do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from tidegate.aws.table import ConditionFailed, Table, check, put, update
from tidegate.errors import Busy

KEY = {"pk": "P#1", "sk": "META"}


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def stub(slept: list[float]) -> Iterator[tuple[Stubber, Table]]:
    client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stubber:
        yield stubber, Table(client, "t", slept.append)


def cancelled(stubber: Stubber, *reasons: str) -> None:
    found: Any = [{"Code": reason} for reason in reasons]
    stubber.add_client_error(
        "transact_write_items",
        "TransactionCanceledException",
        modeled_fields={"CancellationReasons": found},
    )


def test_conflict_is_retried(stub: tuple[Stubber, Table], slept: list[float]) -> None:
    stubber, table = stub
    cancelled(stubber, "None", "TransactionConflict")
    stubber.add_response("transact_write_items", {})
    table.transact([check(KEY, "#a = :a", a=1), put({**KEY, "sk": "x"})])
    assert len(slept) == 1


def test_failed_condition_is_not_retried(stub: tuple[Stubber, Table], slept: list[float]) -> None:
    stubber, table = stub
    cancelled(stubber, "ConditionalCheckFailed", "TransactionConflict")
    with pytest.raises(ConditionFailed) as refused:
        table.transact([check(KEY, "#a = :a", a=1), put({**KEY, "sk": "x"})])
    assert refused.value.failed == (0,)
    assert slept == []


def test_single_write_is_retried_after_a_transaction_conflict(stub: tuple[Stubber, Table], slept: list[float]) -> None:
    stubber, table = stub
    stubber.add_client_error("update_item", "TransactionConflictException")
    stubber.add_response("update_item", {"Attributes": {"pk": {"S": "P#1"}}})
    assert table.write(update(KEY, {"a": 1})) == {"pk": "P#1"}
    assert len(slept) == 1


def test_repeated_conflicts_raise_busy_after_growing_pauses(stub: tuple[Stubber, Table], slept: list[float]) -> None:
    stubber, table = stub
    for _ in range(9):
        cancelled(stubber, "TransactionConflict")
    with pytest.raises(Busy):
        table.transact([put(KEY)])
    assert slept[-1] > slept[0]
    assert sum(slept) < 4
