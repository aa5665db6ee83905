"""Writes thousands of past records for the console directly into the table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from tests.support.deployed import Deployed
from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.common.ids import iso, new_id
from tidegate.distribution.model import FAILED, SUCCESS, Job, TargetCounts, TransferSpec, job_key
from tidegate.files.model import READY, File
from tidegate.files.store import file_item
from tidegate.queue.model import COMPLETED, POLICIES, Request
from tidegate.queue.model import FAILED as REQUEST_FAILED
from tidegate.queue.store import request_item
from tidegate.records import item_of

_TYPES = [("export", 5, 20.0, 0.98), ("download", 6, 9.0, 0.93), ("scan", 2, 3.0, 1.0), ("batch", 1, 60.0, 1.0)]
_NAMES = ["model.tar.gz", "map-tiles.bin", "firmware-2.4.img", "catalogue.sqlite", "报表-十月.xlsx"]


def fill(deployed: Deployed, project_id: str, *, requests: int, jobs: int, files: int) -> None:
    table = Table(deployed.client("dynamodb"), deployed.outputs["TableName"])
    table.batch_put(items_of_a_busy_hour(project_id, datetime.now(UTC), requests=requests, jobs=jobs, files=files))


def items_of_a_busy_hour(
    project_id: str, now: datetime, *, requests: int, jobs: int, files: int
) -> Iterator[dict[str, Any]]:
    chance = random.Random(7)
    records = (_requests(project_id, requests, now, chance), _jobs(project_id, jobs, now, chance))
    for item in chain(*records, _files(project_id, files, now, chance)):
        yield {name: value for name, value in item.items() if value is not None}


def _requests(project_id: str, count: int, now: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        kind, _, seconds, rate = chance.choices(_TYPES, [weight for _, weight, _, _ in _TYPES])[0]
        created = now - timedelta(seconds=chance.uniform(60, 3600))
        duration = timedelta(seconds=chance.lognormvariate(0, 0.5) * seconds / 2)
        succeeded = chance.random() < rate
        yield request_item(
            Request(
                request_id=new_id("req", created),
                project_id=project_id,
                type=kind,
                channel=POLICIES[kind].channel,
                priority=5,
                status=COMPLETED if succeeded else REQUEST_FAILED,
                created_at=iso(created),
                attempt=1,
                start_time=iso(created),
                finish_time=iso(min(now, created + duration)),
                error=None if succeeded else {"code": "source_refused", "detail": "the source answered 404"},
            )
        )


def _jobs(project_id: str, count: int, now: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        created = now - timedelta(seconds=chance.uniform(90, 3600))
        name = chance.choice(_NAMES)
        spec = TransferSpec(1, 1, f"/releases/{number}/{name}", name, f"{number:064x}", "deploy", "/srv/app")
        total = chance.randint(4, 400)
        failed = chance.randint(1, 3) if chance.random() < 0.05 else 0
        (job_id, *_) = spec.job_ids(number)
        job = Job(
            project_id=project_id,
            job_id=job_id,
            key=job_key(job_id),
            spec=spec,
            bucket=number,
            closes_at=iso(created + timedelta(seconds=15)),
            create_time=iso(created),
            status=FAILED if failed else SUCCESS,
            execute_time=iso(created + timedelta(seconds=15)),
            finish_time=iso(created + timedelta(seconds=15 + chance.lognormvariate(2, 0.5))),
            shard_count=1,
            counts=TargetCounts(total=total, success=total - failed, failed=failed),
        )
        order = f"{job.create_time}#{job.key}"
        index = {"gsi1pk": keys.jobs_list(project_id), "gsi1sk": order}
        yield keys.job(project_id, job.key) | item_of(job) | index


def _files(project_id: str, count: int, now: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        created = now - timedelta(seconds=chance.uniform(0, 86_400))
        name = chance.choice(_NAMES)
        yield file_item(
            File(
                file_id=new_id("file", created),
                project_id=project_id,
                biz_id=1,
                app_id=1,
                file_path=f"/releases/{number}/{name}",
                file_name=name,
                state=READY,
                created_at=iso(created),
                signature=f"{number:064x}",
                size=chance.randint(10_000, 900_000_000),
            )
        )
