"""The sample events, and what a callback costs in AWS calls."""

from __future__ import annotations

import json

from tests.integration.notifications.receiving import callbacks, receiver, send_notice
from tests.integration.notifications.watching import Line
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import ROOT


def sample(name: str) -> object:
    return json.loads((ROOT / f"events/{name}.json").read_text())


def test_functions_take_their_sample_events(cloud: MotoCloud) -> None:
    line = Line(cloud)

    assert cloud.invoke("deliver_callback", sample("deliver_callback")) == {"batchItemFailures": []}
    assert cloud.invoke("websocket", sample("websocket")) == {"statusCode": 200}
    assert cloud.invoke("push_websocket", sample("push_websocket")) is None
    (message,) = line.heard("Zx1c2d3e4f5g6h7i")
    assert message["type"] == "error"


def test_unreadable_message_goes_to_the_dead_letters(cloud: MotoCloud) -> None:
    record = {"messageId": "m1", "body": "nonsense"}

    assert cloud.invoke("deliver_callback", {"Records": [record]}) == {"batchItemFailures": [{"itemIdentifier": "m1"}]}


def test_callback_that_arrives_at_once_costs_five_calls_of_the_table(cloud: MotoCloud, project: Project) -> None:
    # The root of the secrets is read once a process.
    cloud.callback_secret(project.id)
    with receiver() as at:
        send_notice(project, at.url)
        with count_calls(cloud.app) as calls:
            cloud.deliver("CallbacksQueue")

        # One read for the host and its project, one for the project's settings; once in some seconds, the freeze.
        reads = {"dynamodb.BatchGetItem": 1, "dynamodb.GetItem": 2}
        assert calls == reads | {"dynamodb.PutItem": 1, "dynamodb.UpdateItem": 1}
    assert callbacks(project)[0]["callback_state"] == "delivered"


def test_end_costs_one_publish_and_one_delete(cloud: MotoCloud, project: Project) -> None:
    with count_calls(cloud.app) as calls:
        send_notice(project, "http://127.0.0.1:9/hook")

    assert calls == {"dynamodb.TransactWriteItems": 1, "sns.PublishBatch": 1, "dynamodb.BatchWriteItem": 1}
