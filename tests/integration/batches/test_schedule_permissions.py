"""The function that fires batch schedules makes only AWS calls that its role in template.yaml allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.batches.schedules import batches, fire, new_schedule, to_next_run
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tests.support.template import statements

TABLE = {"Fn::GetAtt": ["TableInUseArn", "Value"]}
TRANSACTED = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}


@contextmanager
def table_calls(cloud: MotoCloud) -> Iterator[set[tuple[str, str]]]:
    """(IAM action, index or "") of every call to the table inside the block."""
    made: set[tuple[str, str]] = set()

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        if model.name == "TransactWriteItems":
            made.update((f"dynamodb:{TRANSACTED[kind]}", "") for item in params["TransactItems"] for kind in item)
        else:
            made.add((f"dynamodb:{model.name}", params.get("IndexName", "")))

    events = cloud.app.dynamodb.meta.events
    events.register("before-parameter-build.dynamodb", note)
    try:
        yield made
    finally:
        events.unregister("before-parameter-build.dynamodb", note)


def refused(function: str, calls: set[tuple[str, str]]) -> set[tuple[str, str]]:
    def is_allowed(action: str, index: str) -> bool:
        resource = {"Fn::Sub": f"${{TableInUseArn.Value}}/index/{index}"} if index else TABLE
        every_index = {"Fn::Sub": "${TableInUseArn.Value}/index/*"}
        for statement in statements(function):
            actions, resources = (
                value if isinstance(value, list) else [value] for value in (statement["Action"], statement["Resource"])
            )
            if action in actions and (resource in resources or (index and every_index in resources)):
                return True
        return False

    return {call for call in calls if not is_allowed(*call)}


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    with (
        MotoCloud(BATCH_CHANNELS="batch,batch_b", CHANNEL_CAPACITIES='{"batch_b": 4}') as cloud,
        batch_world(cloud) as made,
    ):
        made.business.secret = None
        yield made


def test_schedule_may_choose_between_channels_while_requests_wait(world: BatchWorld) -> None:
    made = new_schedule(world)
    world.act(world.create(world.register()), "start")
    to_next_run(world, made)
    with table_calls(world.cloud) as calls:
        fire(world)
    assert len(batches(world)) == 2
    assert refused("StartScheduledBatchesFunction", calls) == set()


def test_schedule_may_report_a_batch_that_its_business_refuses(world: BatchWorld) -> None:
    made = new_schedule(world, "before_run")
    world.business.answers["/before-run"] = lambda _: (400, {})
    to_next_run(world, made)
    with table_calls(world.cloud) as calls:
        fire(world)
    assert [batch["status"] for batch in batches(world)] == ["stopped"]
    assert refused("StartScheduledBatchesFunction", calls) == set()
