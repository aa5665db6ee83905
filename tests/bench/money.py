"""Estimates the cost on AWS, and that of two simpler designs by the same method."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import calls, flows, prices
from tests.bench.figures import Figure, few
from tests.bench.meter import Meter, metered, stored_bytes
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import queue_functions, resources
from tidegate.settings import Settings
from tidegate_client.rates import LONGEST_IDLE_ROUND

SECTION = "Dollars on AWS (us-east-1 list prices)"
MILLION = 1_000_000
WINDOW = 1000
POLLS = 10
# Transitions of download_job.asl.json: six to the first poll, three for each poll, four to the end.
_TRANSITIONS = 6 + 3 * POLLS + 4
_MONTH_SECONDS = 30 * 86400
_POLL_SECONDS = 5
# Six metrics of functions/compensate, five of swarms, one of the log filter in template.yaml.
METRICS = 12


def _execution_input(cloud: MotoCloud) -> Any:
    sfn = cloud.client("stepfunctions")
    started = sfn.list_executions(stateMachineArn=cloud.app.settings.download_job_machine_arn)["executions"]
    return json.loads(sfn.describe_execution(executionArn=started[0]["executionArn"])["input"])


def _submit(cloud: MotoCloud, project: Project, path: str, **body: Any) -> Meter:
    with metered(cloud) as meter:
        answer = cloud.http("POST", path, json=calls.body(**body), key=project.key)
    assert answer.status == 202, answer.body
    meter.add("HTTP_API_REQUEST", 1)
    return meter


def _job(cloud: MotoCloud) -> Meter:
    """Meters the Job of the open window to its end."""
    with metered(cloud) as meter:
        cloud.deliver("TargetsQueue", limit=10_000)
        cloud.clock.advance(600)
        event = _execution_input(cloud)
        for step in ("close_window", "prepare_file", "dispatch_transfer"):
            cloud.invoke(step, event)
    # All polls cost the same while nobody reports.
    with metered(cloud) as poll:
        cloud.invoke("poll_transfer", event)
    cloud.clock.advance(3600)
    with metered(cloud) as end:
        cloud.invoke("finish_job", event)
    meter.take(poll, POLLS)
    meter.take(end)
    meter.add("STEP_FUNCTIONS_TRANSITION", _TRANSITIONS)
    return meter


def _agent(cloud: MotoCloud, project: Project, agent: str) -> tuple[Meter, Meter]:
    """Meters an agent's poll of its inbox, and its report."""
    key = project.agent_key(agent)
    with metered(cloud) as poll:
        items = cloud.http("GET", f"/v1/agents/{agent}/transfers", key=key).json()["items"]
    results = [{"transfer_id": item["transfer_id"], "container_id": "", "error_code": 0} for item in items]
    with metered(cloud) as report:
        if results:
            cloud.http("POST", f"/v1/agents/{agent}/results", json={"items": results}, key=key)
    for meter in (poll, report):
        meter.add("HTTP_API_REQUEST", 1)
    return poll, report


def _in_a_cloud(measured: Callable[[MotoCloud, Project], Any]) -> Any:
    with MotoCloud(COLLECT_WINDOW_SECONDS="300") as cloud:
        return measured(cloud, calls.with_file(cloud))


def _window(cloud: MotoCloud, project: Project) -> tuple[Meter, Meter, Meter, float]:
    _submit(cloud, project, "/v1/downloads", target_agent_id="first")
    submit = _submit(cloud, project, "/v1/downloads", target_agent_id="a")
    targets = [{"agent_id": f"a{number}"} for number in range(few(WINDOW))]
    batch = _submit(cloud, project, "/v1/downloads/batch", targets=targets)
    job = _job(cloud)
    table = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    job_bytes = max(stored_bytes(item) for item in table if "#JOB#" in item["pk"]["S"])
    return submit, batch, job, job_bytes


def _alone(cloud: MotoCloud, project: Project) -> Meter:
    """Meters a window of one target, as if each request had its own execution."""
    _submit(cloud, project, "/v1/downloads", target_agent_id="a")
    return _job(cloud)


def _agents(cloud: MotoCloud, project: Project) -> tuple[Meter, Meter]:
    _submit(cloud, project, "/v1/downloads", target_agent_id="a")
    cloud.deliver("TargetsQueue")
    cloud.clock.advance(600)
    event = _execution_input(cloud)
    for step in ("close_window", "prepare_file", "dispatch_transfer"):
        cloud.invoke(step, event)
    return _agent(cloud, project, "a")


def distribution() -> Iterator[Figure]:
    submit, batch, job, job_bytes = _in_a_cloud(_window)
    jobs = MILLION / WINDOW
    one_by_one = submit.dollars(MILLION) + job.dollars(jobs)
    in_batches = batch.dollars(jobs) + job.dollars(jobs)
    execution_each = submit.dollars(MILLION) + _in_a_cloud(_alone).dollars(MILLION)
    scanning = one_by_one + _scanning(jobs, job_bytes)
    poll, report = _in_a_cloud(_agents)
    agents = poll.dollars(MILLION) + report.dollars(MILLION)
    each = f"{POLLS} polls a Job"
    yield Figure(
        SECTION,
        "a million targets, windows of 1,000, submitted one by one",
        one_by_one,
        "$",
        execution_each / 20,
        note=each,
    )
    yield Figure(
        SECTION, "a million targets, windows of 1,000, submitted in batches", in_batches, "$", execution_each / 20
    )
    yield Figure(SECTION, "the same with one execution per request", execution_each, "$", note=each)
    yield Figure(
        SECTION,
        f"the same in a month, with a poll every {_POLL_SECONDS} s that scans all Jobs",
        scanning,
        "$",
        note=f"{jobs:,.0f} Jobs of {job_bytes:,.0f} bytes; ten times the Jobs, ten times the scan",
    )
    yield Figure(SECTION, "with agents, their own calls: a look and a report a target", agents, "$", note="all designs")


def _scanning(jobs: float, job_bytes: float) -> float:
    """Returns the cost of the original scheduler on AWS: each poll reads every Job that has not expired."""
    poll_cost = jobs * job_bytes / 8192 * prices.DYNAMODB_READ + prices.LAMBDA_REQUEST + prices.LAMBDA_GB_SECOND
    return _MONTH_SECONDS / _POLL_SECONDS * poll_cost


def exports(quick: bool) -> Iterator[Figure]:
    """Meters exports of a hundred pages, from the request to the file."""
    for kind in ("excel", "csv")[: few(100)]:
        meter = flows.export(few(100, 2), kind)
        seconds = f"{meter.used['LAMBDA_GB_SECOND']:.1f} GB·s each, here"
        yield Figure(SECTION, f"1,000 exports of 100,000 rows, {kind}", meter.dollars(1000), "$", note=seconds)
        if quick:
            return


def _poll(cloud: MotoCloud, project: Project) -> Meter:
    return _agent(cloud, project, "idle")[0]


def _ticks(cloud: MotoCloud, _: Project) -> dict[str, Meter]:
    """Meters everything that runs on a schedule in an empty system, by its interval."""
    cloud.invoke("compensate", {"source": "aws.events"})
    used = {}
    with metered(cloud) as used["poll"]:
        cloud.deliver("CompensationQueue", limit=1)
    with metered(cloud) as used["minute"]:
        for function in ("compensate", "scan_subscriptions", "start_scheduled_exports", "start_scheduled_batches"):
            cloud.invoke(function, {"source": "aws.events"})
    with metered(cloud) as used["day"]:
        cloud.invoke("clean_up", {"source": "aws.events"})
    return used


def idle() -> Iterator[Figure]:
    used = _in_a_cloud(_ticks)
    seconds = {"poll": Settings().compensation_longest_seconds, "minute": 60, "day": 86400}
    month = sum(used[name].dollars(_MONTH_SECONDS / every) for name, every in seconds.items())
    yield Figure(SECTION, "an idle month: polls, schedules, the nightly sweep", month, "$", 1)
    yield billed_anyway()
    # Intervals are random, between half of the longest and the longest.
    polls = _MONTH_SECONDS / (0.75 * LONGEST_IDLE_ROUND)
    yield Figure(SECTION, "an idle agent's month without a connection, each", _in_a_cloud(_poll).dollars(polls), "$")


def billed_anyway() -> Figure:
    """Returns what AWS bills in any case. Lambda keeps about five long polls of 20 s at each mapped queue."""
    # An alarm on a sum is billed for each metric in it.
    watched = [alarm["Properties"].get("Metrics", []) for alarm in resources("AWS::CloudWatch::Alarm").values()]
    alarms = sum(max(1, sum("MetricStat" in metric for metric in metrics)) for metrics in watched)
    queues = len(queue_functions())
    polls = queues * 5 * _MONTH_SECONDS / 20
    dollars = alarms * prices.CLOUDWATCH_ALARM + METRICS * prices.CLOUDWATCH_METRIC + polls * prices.SQS_REQUEST
    dollars += prices.CLOUDWATCH_DASHBOARD
    what = (
        f"{alarms} alarmed metrics, {METRICS} metrics, a dashboard, Lambda's polls of {queues} queues; before the free "
        f"tier. Of these {rollout_metrics()} metrics stop bad rollouts"
    )
    return Figure(SECTION, "an idle month: what AWS adds by itself", dollars, "$", note=what)


def rollout_metrics() -> int:
    """The alarmed metrics that only a gradual rollout has."""
    alarms = resources("AWS::CloudWatch::Alarm").values()
    watched = [alarm["Properties"]["Metrics"] for alarm in alarms if alarm.get("Condition") == "Gradual"]
    return sum("MetricStat" in metric for metrics in watched for metric in metrics)


# Services that private functions reach by interface endpoints (docs/operations.md, "Private networks").
_ENDPOINTS = ("sqs", "sns", "states", "ssm", "secretsmanager", "monitoring")
_HOURS = 730


def options() -> Iterator[Figure]:
    """What options and stored data cost in a month, whether or not they are used."""
    secret = prices.SECRET_MONTH + 1000 * prices.SECRET_CALL
    yield Figure(SECTION, "a credential of a source, a month", secret, "$", note="a secret, and a thousand reads of it")
    zones = 2
    nat, endpoints = zones * _HOURS * prices.NAT_HOUR, zones * len(_ENDPOINTS) * _HOURS * prices.ENDPOINT_HOUR
    note = f"NAT gateways in {zones} zones {nat:.0f}, and {prices.NAT_GB} a GB"
    yield Figure(SECTION, "a private network (VpcSubnetIds), a month", nat, "$", note=note)
    note = f"{len(_ENDPOINTS)} in {zones} zones, if public URLs are not needed"
    yield Figure(SECTION, "the same with interface endpoints instead", endpoints, "$", note=note)
    kept = prices.DYNAMODB_STORED_GB_MONTH + prices.PITR_GB_MONTH
    note = f"storage {prices.DYNAMODB_STORED_GB_MONTH}, recovery {prices.PITR_GB_MONTH}; indexes the same again"
    yield Figure(SECTION, "a GB of records, a month", kept, "$", note=note)


def measure(quick: bool) -> Iterator[Figure]:
    yield from distribution()
    yield from exports(quick)
    yield from idle()
    yield from options()
