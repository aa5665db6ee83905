"""What it costs on AWS, and what two plain designs would cost by the same counting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.bench import calls, prices
from tests.bench.figures import Figure
from tests.bench.meter import Meter, metered
from tests.support.moto_cloud import MotoCloud

SECTION = "Dollars on AWS (us-east-1 list prices)"
MILLION = 1_000_000
WINDOW = 1000
POLLS = 10
# Six states to the first poll, three for each poll, four to the end.
_TRANSITIONS = 6 + 3 * POLLS + 4
_MONTH_SECONDS = 30 * 86400


def _executed(cloud: MotoCloud) -> Any:
    sfn = cloud.client("stepfunctions")
    started = sfn.list_executions(stateMachineArn=cloud.app.settings.download_job_machine_arn)["executions"]
    return json.loads(sfn.describe_execution(executionArn=started[0]["executionArn"])["input"])


def _job(cloud: MotoCloud) -> tuple[Meter, Meter, Meter]:
    """One submit, warm; the same through a batch; and what the Job of a window then costs."""
    project = calls.with_file(cloud)
    cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="first"), key=project.key)
    with metered(cloud) as submit:
        cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="a"), key=project.key)
    targets = [{"agent_id": f"a{number}"} for number in range(WINDOW)]
    with metered(cloud) as batch:
        made = cloud.http("POST", "/v1/downloads/batch", json=calls.body(targets=targets), key=project.key)
    assert made.status == 202, made.body
    with metered(cloud) as job:
        cloud.deliver("TargetsQueue", limit=10_000)
        cloud.clock.advance(600)
        event = _executed(cloud)
        for step in ("close_window", "prepare_file", "dispatch_transfer"):
            cloud.invoke(step, event)
        for _ in range(POLLS):
            cloud.invoke("poll_transfer", event)
        cloud.clock.advance(3600)
        cloud.invoke("finish_job", event)
    job.add("STEP_FUNCTIONS_TRANSITION", _TRANSITIONS)
    for meter in (submit, batch):
        meter.add("HTTP_API_REQUEST", 1)
    return submit, batch, job


def distribution(cloud: MotoCloud) -> Iterator[Figure]:
    submit, batch, job = _job(cloud)
    jobs = MILLION / WINDOW
    singly = submit.dollars(MILLION) + job.dollars(jobs)
    together = batch.dollars(jobs) + job.dollars(jobs)
    # Transitions alone, without that design's Lambda time and writes: a lower bound of what it costs.
    plain = submit.dollars(MILLION) + MILLION * _TRANSITIONS * prices.STEP_FUNCTIONS_TRANSITION
    yield Figure(SECTION, "a million targets, windows of 1,000, submitted one by one", singly, "$", plain / 20)
    yield Figure(SECTION, "a million targets, windows of 1,000, submitted in batches", together, "$", plain / 20)
    yield Figure(SECTION, "the same with one execution per request", plain, "$", note=f"at least; {POLLS} polls each")
    yield Figure(
        SECTION, "the same with a poll every 5 s that reads every Job, a month of 10,000 Jobs", _scanning(), "$"
    )


def _scanning(live_jobs: int = 10_000, kilobytes: float = 2) -> float:
    """The seed's scheduler moved to AWS as it is: each poll reads all Jobs that have not expired."""
    reads = live_jobs * kilobytes / 8
    return _MONTH_SECONDS / 5 * (reads * prices.DYNAMODB_READ + prices.LAMBDA_REQUEST + 2 * prices.LAMBDA_GB_SECOND)


def exports(cloud: MotoCloud) -> Iterator[Figure]:
    """By its parts: 100 pages staged and read once, one file in 5 MB parts, nine transitions, a minute of Lambda."""
    pages, parts, seconds, gigabytes = 100, 3, 45, 2
    one = pages * (prices.S3_PUT + prices.S3_GET) + parts * prices.S3_PUT + 40 * prices.DYNAMODB_WRITE
    one += 9 * prices.STEP_FUNCTIONS_TRANSITION + seconds * gigabytes * prices.LAMBDA_GB_SECOND
    yield Figure(SECTION, "1,000 exports of 100,000 rows", 1000 * one, "$", note="from assumed parts, not counted")


def idle(cloud: MotoCloud) -> Iterator[Figure]:
    cloud.invoke("compensate", {"source": "aws.events"})
    with metered(cloud) as poll:
        cloud.deliver("CompensationQueue", limit=1)
    with metered(cloud) as minute:
        cloud.invoke("compensate", {"source": "aws.events"})
    month = poll.dollars(_MONTH_SECONDS / 300) + minute.dollars(_MONTH_SECONDS / 60)
    yield Figure(SECTION, "an idle month, by our own calls", month, "$", 1)


def measure(quick: bool) -> Iterator[Figure]:
    for section in (distribution, exports, idle):
        with MotoCloud(COLLECT_WINDOW_SECONDS="300") as cloud:
            yield from section(cloud)
