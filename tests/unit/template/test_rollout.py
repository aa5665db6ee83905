"""What stops the rollout of a new version, and how an operator gets a fix past it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from local import template
from tests.unit.template.test_deployed import FUNCTIONS, MACHINES, of_type, resources
from tidegate.errors import Busy
from tidegate.web.api import serve, with_error_handlers
from tidegate.web.openapi import Api

# docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Create-alarm-on-metric-math-expression.html
MOST_METRICS = 10
# docs.aws.amazon.com/codedeploy/latest/userguide/limits.html
MOST_ALARMS_OF_A_GROUP = 10
NOT_STEPS = ("Partition", "BatchMachineArn")


@cache
def chosen(**parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = template.transformed(**parameters)["Resources"]
    return found


def alarms_of(resource: str) -> list[str]:
    """The alarms that stop the rollout of a function or machine."""
    if resource in MACHINES:
        condition, at_once, gradual = resources()[f"{resource}Aliaslive"]["Properties"]["DeploymentPreference"][
            "Alarms"
        ]["Fn::If"]
        assert (condition, at_once) == ("AtOnce", {"Ref": "AWS::NoValue"})
        return [alarm["Ref"] for alarm in gradual]
    group = resources()[f"{resource}DeploymentGroup"]["Properties"]["AlarmConfiguration"]
    condition, at_once, gradual = group["Fn::If"]
    assert (condition, at_once) == ("AtOnce", {})
    return [alarm["Name"]["Ref"] for alarm in gradual["Alarms"]]


def metrics_of(alarm: str) -> list[dict[str, Any]]:
    return [each for each in of_type("AWS::CloudWatch::Alarm")[alarm]["Metrics"] if "MetricStat" in each]


def version_of(function: str) -> dict[str, Any]:
    (name,) = (name for name in resources() if re.fullmatch(rf"{function}Version[0-9a-f]+", name))
    return {"Fn::GetAtt": [name, "Version"]}


def watched_by(alarm: str) -> dict[str, list[str]]:
    """The metrics of each function in an alarm; each must be that of the version which this template deploys."""
    found: dict[str, list[str]] = {}
    for each in metrics_of(alarm):
        metric = each["MetricStat"]["Metric"]
        dimensions = {dimension["Name"]: dimension["Value"] for dimension in metric["Dimensions"]}
        if metric["Namespace"] != "AWS/Lambda":
            assert dimensions == {"release": "not-released"}
            continue
        function = dimensions.pop("FunctionName")["Ref"]
        by_alias = {"Resource": {"Fn::Sub": f"${{{function}}}:live"}, "ExecutedVersion": version_of(function)}
        by_version = {"Resource": {"Fn::Join": [":", [{"Ref": function}, version_of(function)]]}}
        assert dimensions == (by_version if function in called_by_machines() else by_alias)
        found.setdefault(function, []).append(metric["MetricName"])
    return found


@cache
def called_by_machines() -> set[str]:
    named = [machine["DefinitionSubstitutions"] for machine in of_type("AWS::StepFunctions::StateMachine").values()]
    versions = [value["Ref"] for each in named for key, value in each.items() if key not in NOT_STEPS]
    return {re.sub(r"Version[0-9a-f]+$", "", version) for version in versions}


def test_every_function_is_watched_by_an_alarm_of_its_rollout() -> None:
    watched = {name: metrics for alarm in rollout_alarms() for name, metrics in watched_by(alarm).items()}
    assert watched == {name: ["Errors", "Invocations"] for name in FUNCTIONS}
    for machine in MACHINES:
        steps = of_type("AWS::StepFunctions::StateMachine")[machine]["DefinitionSubstitutions"]
        called = {re.sub(r"Version[0-9a-f]+$", "", v["Ref"]) for key, v in steps.items() if key not in NOT_STEPS}
        assert called <= {name for alarm in alarms_of(machine) for name in watched_by(alarm)}


def rollout_alarms() -> list[str]:
    return sorted({alarm for resource in (*FUNCTIONS, *MACHINES) for alarm in alarms_of(resource)})


@pytest.mark.parametrize("alarm", rollout_alarms())
def test_alarm_of_a_rollout_fits_cloudwatchs_limits(alarm: str) -> None:
    assert len(metrics_of(alarm)) <= MOST_METRICS
    assert resources()[alarm]["Condition"] == "Gradual"


def test_group_has_no_more_alarms_than_codedeploy_allows() -> None:
    assert max(len(alarms_of(function)) for function in FUNCTIONS) <= MOST_ALARMS_OF_A_GROUP


@pytest.mark.parametrize("alarm", rollout_alarms())
@pytest.mark.parametrize(
    ("failed", "calls", "stops"),
    [
        ({}, {}, False),
        ({}, {"inv1": 1000}, False),
        ({"err1": 2}, {"inv1": 2}, False),
        ({"err1": 3}, {"inv1": 3}, True),
        ({"err1": 5}, {"inv1": 1000}, False),
        ({"err1": 50}, {"inv1": 1000}, False),
        ({"err1": 51}, {"inv1": 1000}, True),
        ({"err1": 2, "err2": 2}, {"inv1": 20, "inv2": 20}, True),
    ],
)
def test_rollout_stops_at_a_rate_of_failures_not_at_a_count(
    alarm: str, failed: dict[str, int], calls: dict[str, int], stops: bool
) -> None:
    assert in_alarm(alarm, failed | calls) == stops


def test_internal_errors_of_the_release_stop_its_rollout() -> None:
    assert not in_alarm("NewApiAlarm", {"inv1": 100, "err500": 5})
    assert in_alarm("NewApiAlarm", {"inv1": 100, "err500": 6})


def in_alarm(alarm: str, data: dict[str, int]) -> bool:
    """Evaluates the alarm's expressions as CloudWatch documents them; a metric without data is left out."""
    properties = of_type("AWS::CloudWatch::Alarm")[alarm]
    known: dict[str, Any] = {each["Id"]: data.get(each["Id"]) for each in metrics_of(alarm)}
    metrics = dict(known)
    functions: dict[str, Callable[..., Any]] = {
        "METRICS": lambda text: [value for name, value in metrics.items() if text in name],
        "FILL": lambda values, filled: (
            [filled if value is None else value for value in values]
            if any(value is not None for value in values)
            else []
        ),
        "SUM": sum,
        "IF": lambda condition, yes, no: yes if condition else no,
    }
    expressions = {each["Id"]: each["Expression"] for each in properties["Metrics"] if "Expression" in each}
    for name in ("failed", "calls"):
        known[name] = eval(expressions[name], {**functions, **known})
    if not known["calls"]:
        return False
    rate = eval(expressions["rate"], {**functions, **known})
    assert properties["ComparisonOperator"] == "GreaterThanThreshold"
    return bool(rate > properties["Threshold"])


@pytest.mark.parametrize(("error", "status", "counts"), [(Busy("busy"), 503, False), (KeyError("bug"), 500, True)])
def test_busy_answers_do_not_count_as_internal_errors(
    error: Exception, status: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 (Busy) is by design: callers try again."""
    told: list[dict[str, Any]] = []
    monkeypatch.setenv("RELEASE", "r1")
    monkeypatch.setattr("tidegate.web.api.logger.exception", lambda text, **more: told.append({"m": text} | more))
    api = with_error_handlers(Api())
    api.scopes["GET", "/v1/fails"] = "open"

    @api.get("/v1/fails")
    def fails() -> None:
        raise error

    http = {"method": "GET", "path": "/v1/fails"}
    event = {"rawPath": "/v1/fails", "headers": {}, "requestContext": {"http": http, "stage": "$default"}}
    assert serve(api, event, None)["statusCode"] == status

    (line,) = told
    pattern = of_type("AWS::Logs::MetricFilter")["InternalErrors"]["FilterPattern"]
    assert (pattern == f'{{ $.message = "{line["m"]}" }}') == counts
    assert (line.get("release") == "r1") == counts


@pytest.mark.parametrize(
    ("parameters", "at_once"),
    [({}, False), ({"Rollout": "AllAtOnce"}, True), ({"BreakGlass": "yes"}, True)],
)
def test_rollout_at_once_has_no_alarms(parameters: dict[str, str], at_once: bool) -> None:
    whole = template.expanded()
    values = {name: str(each.get("Default", "")) for name, each in whole["Parameters"].items()} | parameters
    assert holds("AtOnce", whole["Conditions"], values) == at_once
    group = chosen(**parameters)["ApiFunctionDeploymentGroup"]["Properties"]
    (_, with_all, gradual) = group["DeploymentConfigName"]["Fn::If"]
    assert "AllAtOnce" in json.dumps(with_all)
    assert values["Rollout"] in json.dumps(gradual)
    assert alarms_of("ApiFunction")


def holds(name: str, conditions: dict[str, Any], values: dict[str, str]) -> bool:
    def value(of: Any) -> Any:
        if not isinstance(of, dict):
            return of
        ((function, argument),) = of.items()
        if function == "Ref":
            return values[argument]
        if function == "Condition":
            return value(conditions[argument])
        if function == "Fn::Equals":
            return value(argument[0]) == value(argument[1])
        if function == "Fn::Not":
            return not value(argument[0])
        return {"Fn::Or": any, "Fn::And": all}[function](value(each) for each in argument)

    return bool(value({"Condition": name}))
