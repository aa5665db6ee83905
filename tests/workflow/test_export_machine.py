"""The export state machine on moto: order, admission, steps, end, notification."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tests.support.exports.paged_source import PagedSource, numbered
from tests.support.exports.running import ExportWorld, read_csv
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import idle_clock
from tidegate.exports import Exports, steps


@pytest.fixture
def world(running_cloud: MotoCloud, httpserver: HTTPServer) -> ExportWorld:
    return ExportWorld(running_cloud, running_cloud.project(), PagedSource(httpserver))


def run_to_end(world: ExportWorld, task_id: str, attempts: int = 1) -> dict[str, Any]:
    """Moves the clock through back-offs and admits the export until it has ended. Returns it."""
    until = idle_clock() + 40
    while idle_clock() < until:
        world.cloud.clock.advance(31)
        world.cloud.deliver("WakeupsQueue")
        world.cloud.deliver("AdmissionQueue")
        shown = world.shown(task_id)
        if shown["status"] in ("completed", "failed"):
            assert shown["attempts"] == attempts
            return shown
        time.sleep(0.1)
    raise AssertionError(f"not over: {world.shown(task_id)}")


def test_ordered_export_makes_a_file_and_a_notice(world: ExportWorld) -> None:
    notices = subscribe(world.cloud)
    world.source.rows = numbered(450)
    task_id = world.submit(step=100, callback=world.source.url)

    assert run_to_end(world, task_id)["progress"]["rows"] == 450
    assert len(read_csv(world.file(task_id))) == 450
    kinds = [json.loads(message)["type"] for message in notices()]
    assert kinds == ["task.completed"]


def test_machine_tries_a_failing_source_three_times(world: ExportWorld) -> None:
    world.source.failures = {0: [500] * 9}
    shown = run_to_end(world, world.submit(), attempts=3)
    assert (shown["status"], world.source.pages) == ("failed", {0: 3})


def test_function_that_dies_ends_only_its_attempt(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.source.rows = numbered(150)
    render, died = steps.render, list[Any]()

    def dies_once(exports: Exports, event: Any) -> dict[str, Any]:
        if not died:
            died.append(event)
            raise MemoryError("the sandbox is full")
        return render(exports, event)

    monkeypatch.setattr(steps, "render", dies_once)
    task_id = world.submit(step=100)
    shown = run_to_end(world, task_id, attempts=2)
    assert shown["status"] == "completed"
    assert world.source.pages == {0: 1, 1: 1}


def subscribe(cloud: MotoCloud) -> Any:
    """Subscribes a queue to the topic. Returns a function that receives its notifications."""
    sqs, sns = cloud.client("sqs"), cloud.client("sns")
    url = sqs.create_queue(QueueName="heard")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = cloud.app.settings.notifications_topic_arn
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})

    def receive() -> list[str]:
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return [message["Body"] for message in messages]

    return receive
