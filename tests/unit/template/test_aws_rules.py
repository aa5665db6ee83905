"""Rules of AWS that no emulator enforces, checked on the template as AWS sees it."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from local import environment, template
from tests.support.template import ROOT, directory_of, queue_functions
from tests.support.template import functions as sam_functions
from tests.unit.template.test_deployed import FUNCTIONS, listed, of_type, resources, statements
from tidegate.aws.clients import _pause
from tidegate.distribution.model import LONGEST_WAIT, longest_wait
from tidegate.files.model import LARGEST_FILE, seconds_to_read
from tidegate.files.reading import RESERVE_SECONDS
from tidegate.queue.model import POLICIES

MACHINES = sorted(path.name for path in (ROOT / "statemachines").glob("*.asl.json"))
# Step Functions ends an execution at this many events.
MOST_EVENTS = 25_000
# A Wait and a Choice are two events each, a Task five.
EVENTS_A_POLL = 9
START = "states:StartExecution"


def role_of(function: str) -> str:
    return function.removesuffix("Function") + "Role"


def granted(function: str, action: str) -> list[Any]:
    found = [s for s in statements(role_of(function)) if action in listed(s["Action"])]
    return [resource for statement in found for resource in listed(statement["Resource"])]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_executions_are_granted_on_the_machine_itself(function: str) -> None:
    """AWS authorises a start by alias on the machine's own ARN; a permission on the alias's ARN would be denied."""
    variables = of_type("AWS::Lambda::Function")[function]["Environment"]["Variables"]
    known = {value["Ref"] for key, value in variables.items() if key.endswith("_MACHINE_ARN")}
    assert {name.removesuffix("Aliaslive") for name in known} == {r["Ref"] for r in granted(function, START)}


def test_batch_may_start_its_own_machine() -> None:
    role = of_type("AWS::IAM::Role")["BatchMachineRole"]
    allowed = [s for policy in role["Policies"] for s in policy["PolicyDocument"]["Statement"] if START in str(s)]
    (statement,) = allowed
    assert statement["Resource"]["Fn::Sub"].endswith(":stateMachine:${AWS::StackName}-batch")


def invoked_by() -> dict[str, set[str]]:
    """Which functions a function can invoke by messages: through SQS, and through SNS."""
    by_directory = {directory_of(function): name for name, function in sam_functions().items()}
    takers = {queue: by_directory[directory] for queue, (directory, _) in queue_functions().items()}
    found: dict[str, set[str]] = {}
    for name in FUNCTIONS:
        queues = [r["Fn::GetAtt"][0] for r in granted(name, "sqs:SendMessage") if "Fn::GetAtt" in r]
        found[name] = {takers[queue] for queue in queues if queue in takers}
        if granted(name, "sns:Publish"):
            found[name] |= {"PushWebSocketFunction", takers["CallbacksQueue"]}
    return found


def reaches(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = set(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead |= graph[name]
    return seen


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_that_invoke_themselves_by_messages_may_do_so(function: str) -> None:
    """Lambda stops a loop through SQS or SNS after 16 invocations, unless the function allows it."""
    graph = invoked_by()
    loops = function in reaches(graph, function)
    told = of_type("AWS::Lambda::Function")[function].get("RecursiveLoop")
    assert told == ("Allow" if loops else None)


def test_loops_are_those_that_are_meant() -> None:
    graph = invoked_by()
    loops = {name for name in FUNCTIONS if name in reaches(graph, name)}
    assert loops == {"CompensateFunction", "AdmitFunction", "WakeFunction", "DeliverCallbackFunction"}


def tasks(states: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, state in states.items():
        if state["Type"] == "Task" and "startExecution" not in state["Resource"]:
            yield name, state
        if "ItemProcessor" in state:
            yield from tasks(state["ItemProcessor"]["States"])


THROTTLED = {"Lambda.TooManyRequestsException", "States.ALL"}


@pytest.mark.parametrize("machine", MACHINES)
def test_throttled_step_waits_for_ten_minutes_before_it_counts_as_failed(machine: str) -> None:
    """An account's concurrency may be used up for minutes, which must not fail a Job or request."""
    definition = json.loads((ROOT / "statemachines" / machine).read_text())
    for name, state in tasks(definition["States"]):
        throttled = next(
            r for r in state["Retry"] if {"Lambda.TooManyRequestsException", "States.ALL"} & {*r["ErrorEquals"]}
        )
        delays = [
            min(throttled["IntervalSeconds"] * throttled["BackoffRate"] ** n, throttled.get("MaxDelaySeconds", 1e9))
            for n in range(throttled["MaxAttempts"])
        ]
        # With full jitter a delay is half as long on average.
        expected = sum(delays) / (2 if throttled.get("JitterStrategy") == "FULL" else 1)
        assert 600 <= expected <= 3600, name


def test_polls_of_the_longest_job_fit_an_executions_history() -> None:
    longest = template.load()["Parameters"]["JobTimeoutSeconds"]["MaxValue"]
    for waves in (0, 10):
        lasts = longest + waves * (longest + 3600)
        assert lasts / longest_wait(lasts) * EVENTS_A_POLL < 0.9 * MOST_EVENTS
    assert longest_wait(600) == longest_wait(longest) == LONGEST_WAIT


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_execution_lasts_longer_than_its_request_may_run(kind: str) -> None:
    """Otherwise Step Functions ends it as TIMED_OUT, which costs the request a retry and raises an alarm."""
    policy = POLICIES[kind]
    definition = json.loads((ROOT / "statemachines" / f"{policy.machine}.asl.json").read_text())
    # A year, if the definition has no time-out.
    reading = seconds_to_read(LARGEST_FILE) if kind in ("verify", "check") else 0
    assert definition.get("TimeoutSeconds", 365 * 86400) > policy.timeout + reading


def test_turns_of_the_largest_file_fit_an_executions_history() -> None:
    """A turn has the events of a poll, but no wait."""
    turn = sam_functions()["IngestFunction"]["Timeout"] - RESERVE_SECONDS
    assert seconds_to_read(LARGEST_FILE) / turn * EVENTS_A_POLL < 0.9 * MOST_EVENTS


def test_slices_of_a_batch_fit_an_executions_history() -> None:
    rounds = template.load()["Parameters"]["BatchRounds"]["MaxValue"]
    assert rounds * EVENTS_A_POLL < 0.9 * MOST_EVENTS


@pytest.mark.parametrize("region", ["us-east-1", "ap-southeast-1", "us-gov-west-1"])
def test_variables_of_every_function_fit_lambdas_4_kb(region: str) -> None:
    """With a kilobyte to spare for the operator's lists and policies."""
    sizes = environment.sizes("tidegate-production", region, {})
    assert set(sizes) == set(FUNCTIONS)
    assert max(sizes.values()) < environment.LAMBDA_LIMIT - 1024


def test_template_fits_cloudformations_limits() -> None:
    assert len(resources()) <= 500
    assert len(json.dumps(resources())) < 1_000_000
    for name, role in of_type("AWS::IAM::Role").items():
        assert (
            sum(len(json.dumps(p["PolicyDocument"], separators=(",", ":"))) for p in role.get("Policies", [])) < 10_240
        ), name


def test_loops_name_nothing_that_only_the_sam_transform_makes() -> None:
    """Language extensions run first, when aliases and versions do not exist yet."""
    text = (ROOT / "template.yaml").read_text()
    assert not re.search(r"!Sub [\"']?\$\{\w+\}\w*(\.Alias|\.Version|Aliaslive)", text)


def test_admission_takes_more_than_300_messages_a_second() -> None:
    """A FIFO queue's limit is for all channels together, unless it is set per message group."""
    queue = of_type("AWS::SQS::Queue")["AdmissionQueue"]
    assert (queue["DeduplicationScope"], queue["FifoThroughputLimit"]) == ("messageGroup", "perMessageGroupId")


@pytest.mark.parametrize("queue", ["TargetsQueue", "CallbacksQueue"])
def test_accepted_work_survives_a_quarter_hour_of_failures(queue: str) -> None:
    """Its message may be its only trace, and a dead letter waits for an operator."""
    receives = int(of_type("AWS::SQS::Queue")[queue]["RedrivePolicy"]["maxReceiveCount"])
    pauses = [_pause({"attributes": {"ApproximateReceiveCount": str(number)}}) for number in range(1, receives)]
    assert sum(pauses) >= 900


def test_functions_behind_the_http_api_end_before_the_gateway_gives_up() -> None:
    behind = [each["IntegrationUri"]["Ref"] for each in http_integrations()]
    functions = of_type("AWS::Lambda::Function")
    assert len(behind) == 3
    assert max(functions[name.removesuffix("Aliaslive")]["Timeout"] for name in behind) <= GATEWAY_SECONDS
    # The authorizer runs before the function, within the same limit.
    assert functions["AuthorizerFunction"]["Timeout"] <= 10


GATEWAY_SECONDS = 30


def http_integrations() -> list[dict[str, Any]]:
    return [each for each in of_type("AWS::ApiGatewayV2::Integration").values() if each["ApiId"] == {"Ref": "HttpApi"}]


# The names in the operators' page of services that IAM names otherwise.
ENDPOINTS = {
    "dynamodb": "DynamoDB",
    "s3": "S3",
    "sqs": "SQS",
    "sns": "SNS",
    "states": "`states`",
    "ssm": "`ssm`",
    "secretsmanager": "Secrets Manager",
    "cloudwatch": "`monitoring`",
    "execute-api": "@connections",
    "athena": "`athena`",
}


def test_operators_are_told_every_service_that_private_functions_must_reach() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    section = page.partition("## Private networks")[2].partition("\n## ")[0]
    private = [name for name in FUNCTIONS if "VpcConfig" in of_type("AWS::Lambda::Function")[name]]
    # Lambda itself writes the logs and makes the network interfaces; Athena reads Glue with the function's rights.
    called = {a.split(":")[0] for n in private for s in statements(role_of(n)) for a in listed(s["Action"])}
    assert called - {"logs", "xray", "ec2", "glue"} == set(ENDPOINTS)
    assert [service for service, name in ENDPOINTS.items() if name not in section] == []


@pytest.mark.parametrize("level", ["DEBUG", "WARN", "ERROR"])
def test_loggers_keep_to_the_log_level_although_lambda_passes_info(level: str) -> None:
    """Lambda sets AWS_LAMBDA_LOG_LEVEL by ApplicationLogLevel, and Powertools prefers it to its own variable."""
    code = "import app, logging; print(*(logging.getLogger(n).level for n in ('tidegate', 'tidegate.aws.clients')))"
    known = {"AWS_LAMBDA_LOG_LEVEL": "DEBUG" if level == "DEBUG" else "INFO", "POWERTOOLS_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT / "functions" / "wake_agents",
        env={"AWS_DEFAULT_REGION": "us-east-1", "POWERTOOLS_SERVICE_NAME": "tidegate", **known},
        capture_output=True,
        text=True,
        check=True,
    )
    own, child = (int(number) for number in done.stdout.split())
    assert own == logging.getLevelName(level)
    assert child in (0, own)
