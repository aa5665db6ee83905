"""Runs a schedule without waiting for its time."""

from __future__ import annotations

import time

from tests.support.deployed import Deployed

EXPORTS, BATCHES = "StartScheduledExports", "StartScheduledBatches"


def fire(deployed: Deployed, schedule_id: str, function: str) -> None:
    """Runs the schedule as if it were due. Its function also runs every minute; whichever comes first runs it."""
    dynamodb, table = deployed.client("dynamodb"), deployed.outputs["TableName"]
    pages = dynamodb.get_paginator("scan").paginate(
        TableName=table,
        FilterExpression="schedule_id = :s AND attribute_exists(due_at)",
        ExpressionAttributeValues={":s": {"S": schedule_id}},
    )
    (item,) = [item for page in pages for item in page["Items"]]
    dynamodb.update_item(
        TableName=table,
        Key={"pk": item["pk"], "sk": item["sk"]},
        UpdateExpression="SET due_at = :past",
        ExpressionAttributeValues={":past": {"N": str(int(time.time()) - 30)}},
    )
    functions = deployed.client("lambda").list_functions()["Functions"]
    (name,) = [each["FunctionName"] for each in functions if function in each["FunctionName"]]
    answer = deployed.client("lambda").invoke(FunctionName=name, Payload=b"{}")
    assert "FunctionError" not in answer, answer["Payload"].read()
