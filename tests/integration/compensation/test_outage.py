"""After an outage: many executions are dead, and Step Functions' quotas are those of a small region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.compensation.polling import Ticks
from tests.support.moto.cloud import MotoCloud
from tidegate.aws.clients import Machines
from tidegate.common.ids import iso
from tidegate.common.token_bucket import TokenBucket
from tidegate.distribution.model import RUNNING, Job, TransferSpec, job_key

# (calls at once, calls a second): AWS's table of API action throttling for the smaller regions.
QUOTAS = {"DescribeExecution": (250, 10), "StartExecution": (800, 150), "StopExecution": (500, 25)}
SECONDS = {"dynamodb": 0.008, "stepfunctions": 0.025, "sqs": 0.01}
TIMEOUT = 60


class Quotas:
    """Lets each AWS call take its time, and refuses those beyond the quotas. Both on the tests' clock."""

    def __init__(self, cloud: MotoCloud) -> None:
        self.cloud = cloud
        self.calls = self.refused = 0
        now = cloud.clock().timestamp()
        self._buckets = {
            name: TokenBucket(rate, now, burst_seconds=size / rate) for name, (size, rate) in QUOTAS.items()
        }

    def __call__(self, model: Any, **_: Any) -> None:
        now = self.cloud.clock.advance(SECONDS.get(model.service_model.service_name, 0.02)).timestamp()
        bucket = self._buckets.get(model.name)
        if bucket is not None:
            self.calls += 1
            if bucket.take(now):
                self.refused += 1
                raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, model.name)


@pytest.fixture
def quotas(cloud: MotoCloud) -> Iterator[Quotas]:
    app = cloud.app
    app.__dict__["machines"] = Machines(app.sfn, lambda: cloud.clock().timestamp(), cloud.clock.advance)
    limits = Quotas(cloud)
    clients = [app.dynamodb, app.sfn, app.sqs]
    yield limits
    for client in clients:
        client.meta.events.unregister("before-call", limits)


def enforce(quotas: Quotas) -> None:
    app = quotas.cloud.app
    for client in (app.dynamodb, app.sfn, app.sqs):
        client.meta.events.register("before-call", quotas)


def dead_job(cloud: MotoCloud, project_id: str, number: int) -> Job:
    """A Job whose execution was started and has failed."""
    now = cloud.clock()
    spec = TransferSpec(1, 1, f"/releases/{number}", "app", f"{number:064x}", "deploy", "/srv")
    job_id = spec.job_ids(number)[0]
    closes, made = iso(now), iso(now - timedelta(seconds=15))
    job = Job(project_id, job_id, job_key(job_id), spec, number, closes, made, sequence=number + 1)
    distribution = cloud.app.distribution
    job, _ = distribution.jobs.open(job, now)
    distribution.executions.start(job)
    return replace(job, status=RUNNING)


def test_thousand_dead_jobs_restart_in_minutes_within_the_quotas(
    cloud: MotoCloud, ticks: Ticks, quotas: Quotas
) -> None:
    project, sfn = cloud.project(), cloud.client("stepfunctions")
    machine = cloud.names.machines["DownloadJobMachine"]
    jobs = [dead_job(cloud, project.id, number) for number in range(1000)]
    for page in sfn.get_paginator("list_executions").paginate(stateMachineArn=machine):
        for execution in page["executions"]:
            sfn.stop_execution(executionArn=execution["executionArn"])
    cloud.clock.advance(120)
    cloud.app.compensation.revive()
    enforce(quotas)

    began, longest = cloud.clock(), 0.0
    while running(cloud, machine) < len(jobs):
        ticks.waiting.sort(key=lambda entry: entry[0])
        due, poll = ticks.waiting.pop(0)
        cloud.clock.move_to(due)
        at = cloud.clock()
        ticks.deliver(poll)
        longest = max(longest, (cloud.clock() - at).total_seconds())
        assert (cloud.clock() - began).total_seconds() < 300, f"{running(cloud, machine)} of 1,000 after five minutes"

    assert quotas.refused == 0
    assert longest < TIMEOUT / 2
    assert (cloud.clock() - began).total_seconds() < 240


def running(cloud: MotoCloud, machine: str) -> int:
    pages = (
        cloud.client("stepfunctions")
        .get_paginator("list_executions")
        .paginate(stateMachineArn=machine, statusFilter="RUNNING")
    )
    return sum(len(page["executions"]) for page in pages)
