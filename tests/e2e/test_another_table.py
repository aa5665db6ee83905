"""A stack is pointed at a restored table, and the former one stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.cloud import cloud_up
from local.place import Place
from local.progress import silence
from local.stack import Stack
from tests.support.deployed import SHORT, Deployed
from tests.support.http_servers import free_port

pytestmark = pytest.mark.e2e
RESTORED = "restored"


def copy(dynamodb: Any, source: str) -> list[dict[str, Any]]:
    """Makes a table like the source, with its items, as a restore does. Returns the items."""
    like = dynamodb.describe_table(TableName=source)["Table"]
    indexes = [
        {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
        for index in like["GlobalSecondaryIndexes"]
    ]
    definition = {name: like[name] for name in ("KeySchema", "AttributeDefinitions")}
    dynamodb.create_table(
        TableName=RESTORED, **definition, GlobalSecondaryIndexes=indexes, BillingMode="PAY_PER_REQUEST"
    )
    items = records(dynamodb, source)
    for item in items:
        dynamodb.put_item(TableName=RESTORED, Item=item)
    return items


def records(dynamodb: Any, table: str) -> list[dict[str, Any]]:
    pages = dynamodb.get_paginator("scan").paginate(TableName=table)
    return [item for page in pages for item in page["Items"]]


def test_stack_is_pointed_at_a_restored_table_and_deletes_nothing(tmp_path: Path) -> None:
    place = Place(home=tmp_path, port=free_port(), params=SHORT)
    with cloud_up(place, silence) as up:
        cloud = Deployed(up)
        dynamodb, own = cloud.client("dynamodb"), cloud.outputs["TableName"]
        before, bucket = cloud.project(), cloud.outputs["FilesBucketName"]
        copy(dynamodb, own)
        after = cloud.project()

        stack = Stack(replace(place, params={**SHORT, "ExistingTable": RESTORED}))
        stack.deploy()

        assert stack.outputs()["TableName"] == RESTORED
        assert stack.outputs()["FilesBucketName"] == bucket, "the bucket stays"
        # The functions may read and write the restored table: AUTH=true enforces their policies.
        assert before.http("GET", "/v1/files").status == 200
        made = before.http("POST", "/v1/files", json={"biz_id": 1, "app_id": 1, "file_path": "/a"})
        assert made.status == 201, made.body
        assert after.http("GET", "/v1/files").status in (401, 403), "made after the time of the restore"

        def holds(table: str) -> bool:
            return made.json()["file_id"] in str(records(dynamodb, table))

        assert (holds(RESTORED), holds(own)) == (True, False)
        assert after.id in str(records(dynamodb, own)), "the former table is kept"
