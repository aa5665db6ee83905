"""A Job of 100,000 targets: the calls grow linearly, and every item and payload is within its limit."""

from __future__ import annotations

import json
import uuid
from collections import Counter

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.aws.table import to_wire
from tidegate.common.ids import iso
from tidegate.distribution import submit, window
from tidegate.distribution.model import Arrival, Target, Task, TransferSpec, job_key
from tidegate.distribution.submit import TargetMessage
from tidegate.projects.audit import SYSTEM, act

A_BATCH = 10_000


def collect(fleet: Fleet, count: int, **more: str) -> tuple[str, Arrival]:
    """Collects messages of 100 targets each, 10,000 targets per invocation, as after a large submit."""
    app = fleet.cloud.app
    job = submit.job_of_window(app.distribution, fleet.project.id, TransferSpec(**fleet.body(**more)))
    arrivals = [Arrival(f"agent-{n:06d}", f"container-{n % 7}", str(uuid.uuid4())) for n in range(count)]
    last = arrivals[-1]
    target = Target(last.agent_id, last.container_id)
    now = iso(fleet.cloud.clock())
    line = act(fleet.project.id, job.job_id, fleet.cloud.clock(), SYSTEM, "download.submit")
    app.distribution.tasks.add([Task(fleet.project.id, last.uuid, job.job_id, target, now, now)], 2**33, line)
    for start in range(0, count, A_BATCH):
        batch = arrivals[start : start + A_BATCH]
        messages = [
            TargetMessage(str(n), fleet.project.id, job.job_id, batch[n : n + 100]) for n in range(0, len(batch), 100)
        ]
        assert window.collect(app.distribution, messages) == []
    return job.job_id, last


def run(fleet: Fleet, count: int, **more: str) -> tuple[str, Arrival, Counter[str]]:
    with count_calls(fleet.cloud.app) as calls:
        job_id, last = collect(fleet, count, **more)
        fleet.pass_window()
        payload = fleet.step("close_window", job_id)
    assert payload["targets"] == count
    assert len(json.dumps(payload)) < 1000, "a state's payload must not grow with the targets"
    return job_id, last, calls


def item_sizes(fleet: Fleet, job_id: str) -> list[int]:
    """About the sizes that DynamoDB would count."""
    app = fleet.cloud.app
    job = app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    packed = fleet.cloud.client("dynamodb").scan(TableName=app.table.name, ProjectionExpression="packed")["Items"]
    return [len(item["packed"]["B"]) for item in packed if "packed" in item] + [len(str(to_wire(job.view())))]


@pytest.mark.slow
def test_100_000_targets_in_one_job(fleet: Fleet) -> None:
    _, _, small = run(fleet, 10_000, file_path="/small")
    job_id, last, large = run(fleet, 100_000)

    assert sum(large.values()) <= 0.02 * 100_000, large
    assert sum(large.values()) <= 10 * sum(small.values()) * 1.05, "linear in targets"
    assert max(item_sizes(fleet, job_id)) < 100_000 < 400 * 1024
    app = fleet.cloud.app
    with count_calls(app) as reads:
        task = app.distribution.lookup.task(fleet.project.id, last.uuid)
    assert task["status"] == "Running"
    assert sum(reads.values()) <= 3
    assert fleet.job(job_id)["counts"]["total"] == 100_000
