"""Fault injection: each mode does to a call what AWS would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError, ReadTimeoutError

from tests.faults.conditions import Conditions
from tests.faults.injection import Died, inject_faults
from tests.faults.modes import (
    CONFLICT,
    CROWDED,
    FROZEN,
    HOT_ITEM,
    LONG_CONFLICT,
    LOST,
    PARTIAL,
    S3_ERROR_BODY,
    S3_SILENT,
    S3_SLOW_DOWN,
    STALE,
    STALE_SECOND,
    UNANSWERED,
)
from tests.support.moto.cloud import MotoCloud
from tidegate import app as composition
from tidegate.aws.table import Table, Write, put, put_new, update
from tidegate.errors import Busy

HERE = {"pk": "P#a", "sk": "1"}


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def table() -> Table:
    made = composition.app().table
    made._sleep = lambda _: None
    return made


def test_stale_read_misses_the_last_write(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=3, mode=STALE):
        table().write(put({**HERE, "value": 1}))
        table().write(put({**HERE, "value": 2}))

        assert (table().get(HERE) or {})["value"] == 1
        assert (table().get(HERE, consistent=True) or {})["value"] == 2


def test_stale_read_misses_all_writes_of_the_last_second(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=4, mode=STALE_SECOND):
        table().write(put({**HERE, "value": 1}))
        cloud.clock.advance(5)
        table().write(put({**HERE, "value": 2}))
        table().write(put({**HERE, "value": 3}))

        assert (table().get(HERE) or {})["value"] == 1


def test_stale_read_misses_a_new_item_and_finds_it_a_second_later(cloud: MotoCloud) -> None:
    with inject_faults(cloud, conditions=Conditions(stale=True)):
        table().write(put({**HERE, "gsi1pk": "list", "gsi1sk": "1"}))

        assert table().get(HERE) is None
        assert table().query("list", index="gsi1").items == []
        assert table().batch_get([HERE]) == []
        assert table().batch_get([HERE], consistent=True) != []
        cloud.clock.advance(2)
        assert table().get(HERE) is not None
        assert len(table().query("list", index="gsi1").items) == 1


def test_write_whose_answer_was_lost_is_applied_twice(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=LOST):
        found = table().write(update(HERE, adds={"count": 1}, condition=""))

    assert found["count"] == 2


def test_transaction_whose_answer_was_lost_is_applied_once(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=LOST):
        table().transact([put_new({**HERE, "value": 1})])
        assert table().get(HERE, consistent=True) is not None


def test_write_without_any_answer_is_applied(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=UNANSWERED):
        with pytest.raises(HTTPClientError):
            table().write(put(HERE))
        assert table().get(HERE, consistent=True) is not None


@pytest.mark.parametrize("write", [put(HERE), update(HERE, {"a": 1}, condition="")])
def test_conflict_ends_at_the_third_attempt(cloud: MotoCloud, write: Write) -> None:
    with inject_faults(cloud, at=1, mode=CONFLICT) as calls:
        table().write(write)

    assert len(calls.made) == 3


def test_long_conflict_of_a_transaction_is_busy(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=4, mode=LONG_CONFLICT):
        for number in range(3):
            table().transact([put({**HERE, "value": number})])
        with pytest.raises(Busy):
            table().transact([put({**HERE, "value": 3})])
        assert (table().get(HERE, consistent=True) or {})["value"] == 2


def test_hot_item_refuses_a_transaction_for_a_moment(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=HOT_ITEM) as calls:
        table().transact([put(HERE)])

    assert len(calls.made) == 3


def test_hot_item_refuses_a_plain_write_after_botocores_retries(cloud: MotoCloud) -> None:
    with (
        inject_faults(cloud, at=1, mode=HOT_ITEM),
        pytest.raises(ClientError, match="ProvisionedThroughputExceeded"),
    ):
        table().write(put(HERE))


def test_unprocessed_part_of_a_batch_is_sent_again(cloud: MotoCloud) -> None:
    items = [{"pk": "P#a", "sk": str(number)} for number in range(10)]
    with inject_faults(cloud, at=1, mode=PARTIAL) as calls:
        table().batch_put(items)
        assert len(list(table().query_all("P#a", consistent=True))) == 10

    assert [made.name for made in calls.made] == ["dynamodb.BatchWriteItem"] * 2 + ["dynamodb.Query"]


def test_every_query_ends_after_one_item(cloud: MotoCloud) -> None:
    items = [{"pk": "P#a", "sk": str(number)} for number in range(3)]
    with inject_faults(cloud, conditions=Conditions(small_pages=True)):
        table().batch_put(items)
        assert len(table().query("P#a", limit=3, consistent=True).items) == 1
        assert len(list(table().query_all("P#a", consistent=True))) == 3


def test_expired_items_are_removed(cloud: MotoCloud) -> None:
    with inject_faults(cloud, conditions=Conditions(expired=True)) as calls:
        table().write(put({**HERE, "expires_at": int(cloud.clock().timestamp()) + 5}))
        calls.invocation("api", cloud)
        assert table().get(HERE, consistent=True) is not None
        cloud.clock.advance(10)
        calls.invocation("api", cloud)
        assert table().get(HERE, consistent=True) is None


@pytest.mark.parametrize(
    ("mode", "met"), [(S3_ERROR_BODY, "InternalError"), (S3_SLOW_DOWN, "SlowDown"), (S3_SILENT, "Read timeout")]
)
def test_slow_copy_fails_in_each_mode(cloud: MotoCloud, mode: str, met: str) -> None:
    bucket = cloud.names.refs["FilesBucket"]
    cloud.client("s3").put_object(Bucket=bucket, Key="a", Body=b"1")
    with inject_faults(cloud, at=1, mode=mode):
        s3: Any = composition.app().s3
        with pytest.raises((ClientError, ReadTimeoutError), match=met):
            s3.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a"})


def test_crowded_function_is_refused_and_then_invoked(cloud: MotoCloud) -> None:
    with inject_faults(cloud, at=1, mode=CROWDED):
        with pytest.raises(Died):
            cloud.http("GET", "/v1/files")
        with pytest.raises(Died):
            cloud.http("GET", "/v1/files")
        assert cloud.http("GET", "/v1/files").status == 401


def test_frozen_function_connects_again_after_minutes(cloud: MotoCloud) -> None:
    project, before = cloud.project(), cloud.clock()
    with inject_faults(cloud, at=2, mode=FROZEN) as calls:
        assert cloud.http("GET", "/v1/files", key=project.key).status == 200

    assert calls.injected == "frozen api"
    assert (cloud.clock() - before).total_seconds() == 200


def test_functions_have_different_clocks(cloud: MotoCloud) -> None:
    with inject_faults(cloud, conditions=Conditions(skew=True)):
        clock: Any = composition.app().clock
        seen = set()
        for clock.running in ("api", "admit", "compensate", "finish_job"):
            seen.add(round((clock() - cloud.clock()).total_seconds(), 3))

    assert len(seen) == 4
    assert all(abs(offset) <= 2 for offset in seen)
