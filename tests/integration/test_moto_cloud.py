"""The tests' cloud is made and answers sooner than moto alone would; both are the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner
from moto.core.botocore_stubber import BotocoreStubber
from moto.dynamodb.models.dynamo_type import Item

from tests.support.moto import cloud as moto_cloud
from tests.support.moto import speed
from tests.support.moto.cloud import MotoCloud

_VARIES = {
    *("CreationDateTime", "TableId", "CreatedTimestamp", "LastModifiedTimestamp", "creationDate", "CreationDate"),
    *("SubscriptionArn", "ResponseMetadata", "revisionId", "Policy"),
}


def _steady(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _steady(value) for name, value in found.items() if name not in _VARIES}
    return [_steady(one) for one in found] if isinstance(found, list) else found


def _described(cloud: MotoCloud) -> dict[str, Any]:
    sns, sqs, machines = cloud.client("sns"), cloud.client("sqs"), cloud.client("stepfunctions")
    subscriptions = sns.list_subscriptions()["Subscriptions"]
    return {
        "names": vars(cloud.names),
        "table": _steady(cloud.client("dynamodb").describe_table(TableName=cloud.names.refs["Table"])),
        "buckets": _steady(cloud.client("s3").list_buckets()["Buckets"]),
        "queues": {
            url: _steady(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])
            for url in sqs.list_queues()["QueueUrls"]
        },
        "topics": sns.list_topics()["Topics"],
        "subscriptions": [
            _steady(sns.get_subscription_attributes(SubscriptionArn=one["SubscriptionArn"])) for one in subscriptions
        ],
        "machines": [
            _steady(machines.describe_state_machine(stateMachineArn=one["stateMachineArn"]))
            for one in machines.list_state_machines()["stateMachines"]
        ],
    }


@pytest.mark.parametrize("machines_run", [False, True])
def test_second_cloud_of_a_process_has_the_same_resources(machines_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moto_cloud, "_RECORDINGS", {})
    with MotoCloud(machines_run=machines_run) as first:
        made_by_calls = _described(first)
        first.names.refs["Table"] = "changed by a test"
    with MotoCloud(machines_run=machines_run) as second:
        replayed = _described(second)

    assert len(made_by_calls["subscriptions"]) == len(replayed["subscriptions"]) > 0
    assert {**made_by_calls, "names": {}} == {**replayed, "names": {}}
    assert replayed["names"]["refs"]["Table"] == "Table"


KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
NAMES = {"#pk": "pk", "#n": "n"}
ITEM = {**KEY, "n": {"N": "1"}, "yes": {"BOOL": True}, "none": {"NULL": True}, "m": {"M": {"x": {"L": [{"S": "é"}]}}}}
ADD = {"UpdateExpression": "SET #n = #n + :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
ABSENT = {"ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": "pk"}}
PARTITION = {
    "KeyConditionExpression": "#pk = :pk",
    "ExpressionAttributeNames": {"#pk": "pk"},
    "ExpressionAttributeValues": {":pk": {"S": "a"}},
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("put_item", {"Item": ITEM, "ReturnValues": "ALL_OLD"}),
    ("get_item", {"Key": KEY, "ConsistentRead": True}),
    ("get_item", {"Key": {**KEY, "sk": {"S": "missing"}}}),
    ("put_item", {"Item": ITEM, **ABSENT}),
    ("put_item", {"Item": ITEM, **ABSENT, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}),
    ("update_item", {"Key": KEY, "ExpressionAttributeNames": {"#n": "n"}, "ReturnValues": "ALL_NEW", **ADD}),
    ("update_item", {"Key": KEY, "UpdateExpression": "SET nonsense"}),
    ("query", {**PARTITION, "Limit": 1}),
    ("query", {**PARTITION, "Select": "COUNT"}),
    ("put_item", {"Item": {**KEY, "raw": {"B": b"\x00\xff"}}}),
    ("get_item", {"Key": KEY}),
    ("put_item", {"Item": {"pk": {"S": "a"}}}),
    ("get_item", {"Key": {"pk": {"S": "x" * 3000}, "sk": {"S": "b"}}}),
    ("delete_item", {"Key": KEY, "ReturnValues": "ALL_OLD"}),
]
CANCELLED = {
    "TransactItems": [
        {"Put": {"TableName": "Table", "Item": ITEM}},
        {
            "Delete": {"TableName": "Table", "Key": {**KEY, "sk": {"S": "c"}}, "ConditionExpression": "#x = :x"}
            | {"ExpressionAttributeNames": {"#x": "n"}, "ExpressionAttributeValues": {":x": {"N": "5"}}}
        },
    ]
}
BATCHES: list[tuple[str, dict[str, Any]]] = [
    ("transact_write_items", CANCELLED),
    ("transact_write_items", {"TransactItems": CANCELLED["TransactItems"][:1]}),
    ("batch_get_item", {"RequestItems": {"Table": {"Keys": [KEY]}}}),
    ("batch_write_item", {"RequestItems": {"Table": [{"DeleteRequest": {"Key": KEY}}]}}),
    ("batch_get_item", {"RequestItems": {"Table": {"Keys": [KEY]}}}),
]


def _answers() -> list[Any]:
    """Of all calls in turn: what came back, or the error."""
    found: list[Any] = []
    with MotoCloud() as cloud:
        table = cloud.client("dynamodb")
        for name, arguments in [*((name, {"TableName": "Table", **more}) for name, more in CALLS), *BATCHES]:
            try:
                found.append(_steady(getattr(table, name)(**arguments)))
            except ClientError as error:
                found.append(
                    {**_steady(error.response), "status": error.response["ResponseMetadata"]["HTTPStatusCode"]}
                )
    return found


def test_calls_on_items_are_answered_as_by_moto_alone() -> None:
    quick = _answers()
    alone = [(BotocoreStubber, "process_request", speed._process), (RequestSigner, "handler", speed._sign)]
    alone += [(Item, "__init__", speed._item)]
    patches = speed.patches()
    kept = [each for each in patches if (each.getter(), each.attribute) not in [one[:2] for one in alone]]
    assert len(kept) == len(patches) - len(alone)
    with patch.object(speed, "patches", lambda: kept):
        slow = _answers()

    assert quick == slow
    assert sum("status" in one for one in quick) >= 5


def test_several_threads_write_to_one_item(cloud: MotoCloud) -> None:
    """moto alone fails here: it copies an item while another thread adds attributes to it."""
    table, dynamodb = cloud.names.refs["Table"], cloud.client("dynamodb")
    key = {"pk": {"S": "one"}, "sk": {"S": "item"}}

    def write(thread: int) -> None:
        for number in range(100):
            dynamodb.update_item(
                TableName=table,
                Key=key,
                UpdateExpression="SET #name = :one",
                ExpressionAttributeNames={"#name": f"written_{thread}_{number}"},
                ExpressionAttributeValues={":one": {"N": "1"}},
            )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert len(dynamodb.get_item(TableName=table, Key=key)["Item"]) == 2 + 600


def test_call_that_a_functions_role_does_not_allow_is_refused(cloud: MotoCloud) -> None:
    objects = cloud.app.files.bucket
    with cloud.roles.running("render_export"):
        objects.put("exports/p/e/1", b"x")
        with pytest.raises(ClientError, match="render_export: s3:PutObject"):
            objects.put("content/p/1", b"x")
    assert len(cloud.roles.refused) == 1
    cloud.roles.refused.clear()
