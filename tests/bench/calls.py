"""Counts AWS calls per unit of work, with the real services on moto and a botocore hook."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.bench import flows
from tests.bench.figures import Figure, few
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tidegate import app as composition
from tidegate.files.library import Announcement, new_file
from tidegate.files.model import READY, content_object
from tidegate.projects.audit import SYSTEM, act

SECTION = "AWS calls per unit of work"
SHA = hashlib.sha256(b"calls").hexdigest()
PATH = "/calls/file"
_PER_SUBMIT = 1000
_READS = ("dynamodb.GetItem", "dynamodb.BatchGetItem", "dynamodb.Query")


@contextmanager
def counted(cloud: MotoCloud) -> Iterator[Counter[str]]:
    """Yields the counted calls. The authorizer's read of the key is subtracted where results are shown."""
    with count_calls(cloud.app) as calls:
        yield calls


def with_file(cloud: MotoCloud) -> Project:
    project = cloud.project()
    # By default a project may send five requests a second.
    quotas = {"quotas": {"requests_per_s": 10_000}}
    assert cloud.http("PATCH", f"/v1/projects/{project.id}", json=quotas, key=cloud.admin_key).status == 200
    file = new_file(project.id, Announcement(1, 1, PATH, None, SHA, 5), READY, cloud.clock())
    cloud.client("s3").put_object(
        Bucket=cloud.app.files.bucket.name, Key=content_object(project.id, SHA), Body=b"calls"
    )
    cloud.app.files.store.add(file, act(project.id, file.file_id, cloud.clock(), SYSTEM, "file.create"))
    cloud.app.table.transact(cloud.app.files.store._content_writes(file))
    return project


def body(**more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"biz_id": 1, "app_id": 1, "file_path": PATH, "file_name": "file", "file_signature": SHA}
    return fields | {"target_user": "root", "target_file_dir": "/data"} | more


def single_submits(cloud: MotoCloud) -> Iterator[Figure]:
    project = with_file(cloud)
    key = cloud.make_key(project.id, ["write"])
    composition.install(composition.App(clock=cloud.clock))
    authorizer = 1
    for name, bar in (("cold", None), ("warm", 2)):
        with counted(cloud) as calls:
            answer = cloud.http("POST", "/v1/downloads", json=body(target_agent_id=name), key=key)
        assert answer.status == 202, answer.body
        yield Figure(
            SECTION, f"POST /v1/downloads, {name}", calls.total() - authorizer, "calls", bar, note=_shown(calls)
        )
    task = answer.json()["task_id"].rsplit(":", 1)[-1]
    reader = cloud.make_key(project.id, ["read"])
    with counted(cloud) as calls:
        cloud.http("GET", f"/v1/downloads/{task}", key=reader)
    reads = sum(calls[name] for name in _READS) - authorizer
    yield Figure(SECTION, "GET /v1/downloads/{task}", reads, "reads", 3, note=_shown(calls))


def batch_submit(cloud: MotoCloud) -> Iterator[Figure]:
    project = with_file(cloud)
    targets = [{"agent_id": f"a{number}"} for number in range(few(_PER_SUBMIT))]
    with counted(cloud) as calls:
        answer = cloud.http("POST", "/v1/downloads/batch", json=body(targets=targets), key=project.key)
    assert answer.status == 202, answer.body
    bar = _PER_SUBMIT / 25 + _PER_SUBMIT / 10 + 3
    yield Figure(SECTION, "POST /v1/downloads/batch of 1,000", calls.total() - 1, "calls", bar, note=_shown(calls))


def job(cloud: MotoCloud, targets: int) -> Iterator[Figure]:
    """Counts collecting, closing and sharding of a Job; submits are counted above."""
    project = with_file(cloud)
    # Submits of a hundred thousand targets at one moment are beyond the default rate.
    raised = {"quotas": {"requests_per_s": 10_000}}
    answer = cloud.http("PATCH", f"/v1/projects/{project.id}", json=raised, key=cloud.admin_key)
    assert answer.status == 200, answer.body
    for start in range(0, targets, _PER_SUBMIT):
        part = [{"agent_id": f"a{number}"} for number in range(start, min(start + _PER_SUBMIT, targets))]
        answer = cloud.http("POST", "/v1/downloads/batch", json=body(targets=part), key=project.key)
        assert answer.status == 202, answer.body
    started = cloud.client("stepfunctions").list_executions(stateMachineArn=cloud.app.settings.download_job_machine_arn)
    execution = started["executions"][0]["executionArn"]
    data = cloud.client("stepfunctions").describe_execution(executionArn=execution)["input"]
    with counted(cloud) as calls:
        cloud.deliver("TargetsQueue", limit=1_000_000)
        cloud.clock.advance(60)
        cloud.invoke("close_window", json.loads(data))
    per_target = calls.total() / targets
    bar = 0.02 if targets >= 10_000 else None
    yield Figure(SECTION, f"a Job of {targets:,} targets", per_target, "calls a target", bar, note=_shown(calls))


def idle_poll(cloud: MotoCloud) -> Iterator[Figure]:
    cloud.invoke("compensate", {"source": "aws.events"})
    with counted(cloud) as calls:
        cloud.deliver("CompensationQueue", limit=1)
    reads = sum(calls[name] for name in _READS)
    # Whether the system is frozen, which may not be stale, and the list of due shards.
    yield Figure(SECTION, "an idle compensation poll", reads, "reads", 2, note=_shown(calls))


def exports(quick: bool) -> Iterator[Figure]:
    calls_by_pages = {
        pages: flows.export(pages).calls for pages in ((1, few(100, 2)) if quick else (1, 10, 100, 1_000))
    }
    for pages, calls in calls_by_pages.items():
        yield Figure(SECTION, f"an export of {pages:,} pages", calls.total(), "calls", note=_shown(calls))
    least, most = min(calls_by_pages), max(calls_by_pages)
    each = (calls_by_pages[most].total() - calls_by_pages[least].total()) / (most - least)
    yield Figure(SECTION, "an export's page", each, "calls", note="in ranges from 16 pages on, staged below")


def batches(quick: bool) -> Iterator[Figure]:
    """Counts batches at full rate, so that few of their calls depend on time."""
    for items in (few(1_000),) if quick else (1_000, 10_000):
        calls = flows.batch(items, rate=2_000).calls
        note = f"{calls.total()} calls for {items:,}: {_shown(calls)}"
        yield Figure(SECTION, f"an item of a batch of {items:,}", calls.total() / items, "calls", note=note)


def _shown(calls: Counter[str]) -> str:
    return ", ".join(f"{name.split('.')[1]} {number}" for name, number in calls.most_common())


def measure(quick: bool) -> Iterator[Figure]:
    yield from exports(quick)
    yield from batches(quick)
    for section in (single_submits, batch_submit, idle_poll):
        with MotoCloud() as cloud:
            yield from section(cloud)
    for targets in (1,) if few(100) == 1 else (1, 100, 1_000, 10_000, 100_000):
        with MotoCloud(COLLECT_WINDOW_SECONDS="300") as cloud:
            yield from job(cloud, targets)
