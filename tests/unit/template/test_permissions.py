"""Permissions in template.yaml that MiniStack does not enforce, or that must not be too wide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.support.template import ROOT, functions, queue_functions, resources, statements, variables
from tidegate.exports.store import given_up_object, plan_object

FUNCTIONS = functions()
MACHINES = {name: machine["Properties"] for name, machine in resources("AWS::Serverless::StateMachine").items()}
QUEUES = resources("AWS::SQS::Queue")


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def allowed(name: str, action: str) -> list[Any]:
    """The resources on which that action is allowed."""
    granted = [statement for statement in statements(name) if "Fn::If" not in statement]
    return [r for s in granted if action in listed(s["Action"]) for r in listed(s["Resource"])]


def actions(name: str) -> set[str]:
    return {action for s in statements(name) if "Fn::If" not in s for action in listed(s["Action"])}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_no_function_may_scan_the_table_or_delete_it(name: str) -> None:
    assert not actions(name) & {"dynamodb:Scan", "dynamodb:DeleteTable", "dynamodb:UpdateTable", "s3:DeleteBucket"}


def test_api_may_send_to_the_compensation_queue() -> None:
    api = FUNCTIONS["ApiFunction"]
    assert variables(api)["COMPENSATION_QUEUE_URL"] == {"Ref": "CompensationQueue"}
    assert {"Fn::GetAtt": ["CompensationQueue", "Arn"]} in allowed("ApiFunction", "sqs:SendMessage")


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_machine_may_invoke_exactly_the_functions_it_names(name: str) -> None:
    machine = MACHINES[name]
    definition = (ROOT / machine["DefinitionUri"]).read_text()
    named = [
        value["Fn::GetAtt"][0]
        for key, value in machine.get("DefinitionSubstitutions", {}).items()
        if "${" + key + "}" in definition and "Fn::GetAtt" in value and value["Fn::GetAtt"][0] in FUNCTIONS
    ]
    # Every version: an execution that began before a deployment goes on with the old one. 1.0.0 had none.
    assert allowed(name, "lambda:InvokeFunction") == [
        arn for each in named for arn in ({"Fn::GetAtt": [each, "Arn"]}, {"Fn::Sub": "${" + each + ".Arn}:*"})
    ]
    assert named, "a machine that calls no function"


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_machines_definition_is_short_and_every_task_has_a_time_out(name: str) -> None:
    text = (ROOT / MACHINES[name]["DefinitionUri"]).read_text()
    assert len(text.splitlines()) < 200
    definition = json.loads(text)
    for state_name, state in all_states(definition["States"]):
        if state["Type"] == "Task":
            assert "TimeoutSeconds" in state or "TimeoutSecondsPath" in state, state_name


def all_states(states: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, state in states.items():
        yield name, state
        nested = [state.get("ItemProcessor"), state.get("Iterator"), *state.get("Branches", [])]
        for inner in nested:
            if inner:
                yield from all_states(inner["States"])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_that_knows_a_machine_may_start_it(name: str) -> None:
    known = {v["Ref"] for k, v in variables(FUNCTIONS[name]).items() if k.endswith("_MACHINE_ARN") and "Ref" in v}
    startable = {r["Ref"] for r in allowed(name, "states:StartExecution") if "Ref" in r}
    assert known <= startable


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_that_knows_a_queue_may_use_it(name: str) -> None:
    known = {v["Ref"] for k, v in variables(FUNCTIONS[name]).items() if k.endswith("_QUEUE_URL") and "Ref" in v}
    # Or makes a failed message of its own queue visible again.
    used = [*allowed(name, "sqs:SendMessage"), *allowed(name, "sqs:ChangeMessageVisibility")]
    assert known <= {resource["Fn::GetAtt"][0] for resource in used if "Fn::GetAtt" in resource}


def test_joiner_of_ranges_may_note_that_it_gave_up() -> None:
    """No other object of the staged pages: those are written by the workers."""
    patterns = [
        resource["Fn::Sub"].replace("${BucketInUseArn.Value}/", "")
        for resource in allowed("RenderExportFunction", "s3:PutObject")
    ]
    assert [one for one in patterns if fnmatch(given_up_object("p", "exp-1"), one)]
    assert not [one for one in patterns if fnmatch(plan_object("p", "exp-1"), one)]


def test_admission_may_trigger_another_run_of_itself() -> None:
    """A run that is out of time leaves the rest to the next one."""
    assert {"Fn::GetAtt": ["AdmissionQueue", "Arn"]} in allowed("AdmitFunction", "sqs:SendMessage")


@pytest.mark.parametrize("queue", sorted(queue_functions()))
def test_mapping_reports_partial_failures_and_outlives_its_function(queue: str) -> None:
    directory, mapping = queue_functions()[queue]
    function = next(f for f in FUNCTIONS.values() if f["CodeUri"].strip("/").endswith(f"/{directory}"))
    assert mapping["BatchSize"] == 1 or mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert QUEUES[queue]["Properties"]["VisibilityTimeout"] >= 6 * function.get("Timeout", 30)
    assert "RedrivePolicy" in QUEUES[queue]["Properties"]


def test_every_function_behind_an_api_may_be_invoked_by_it() -> None:
    names = [p["Properties"]["FunctionName"] for p in resources("AWS::Lambda::Permission").values()]
    permitted = {name["Ref"] if "Ref" in name else name["Fn::GetAtt"][0] for name in names}
    made = [i["Properties"] for i in resources("AWS::ApiGatewayV2::Integration").values()]
    uris = [properties["IntegrationUri"] for properties in made if properties["IntegrationType"] != "MOCK"]
    uris += [a["Properties"]["AuthorizerUri"] for a in resources("AWS::ApiGatewayV2::Authorizer").values()]
    behind = {name for name in FUNCTIONS for uri in uris if f"{name}.Arn" in str(uri) or f"'{name}', 'Arn'" in str(uri)}
    assert behind
    assert behind <= permitted


def test_sns_may_send_to_the_queues_that_subscribe() -> None:
    policies = [str(policy["Properties"]) for policy in resources("AWS::SQS::QueuePolicy").values()]
    for subscription in resources("AWS::SNS::Subscription").values():
        properties = subscription["Properties"]
        if properties["Protocol"] == "sqs":
            queue = properties["Endpoint"]["Fn::GetAtt"][0]
            topic = properties["TopicArn"]["Ref"]
            assert any(queue in p and topic in p and "sns.amazonaws.com" in p for p in policies), queue


SIGNERS = {
    "ApiFunction",
    "CompensateFunction",
    "DeliverCallbackFunction",
    "PullPagesFunction",
    "RenderRangesFunction",
    "RunBatchSliceFunction",
    "StartScheduledBatchesFunction",
}


def test_only_functions_that_sign_or_show_callback_secrets_reach_their_root() -> None:
    name = {"Fn::Sub": "/tidegate/${AWS::StackName}/callback-root"}
    for function, properties in FUNCTIONS.items():
        used = {action for action in actions(function) if action.startswith("ssm:")}
        # The renderer opens the passwords of files; those were sealed with the root that exists.
        reads = {"ssm:GetParameter"} if function == "RenderExportFunction" else set[str]()
        assert used == ({"ssm:GetParameter", "ssm:PutParameter"} if function in SIGNERS else reads), function
        known = variables(properties).get("CALLBACK_ROOT_NAME")
        assert known == (name if used else None), function
        for action in used:
            (arn,) = allowed(function, action)
            assert arn["Fn::Sub"].endswith(":parameter" + name["Fn::Sub"])


def test_functions_that_end_keys_may_close_connections() -> None:
    for function in ("ApiFunction", "CompensateFunction", "WebSocketFunction"):
        arns = [arn["Fn::Sub"] for arn in allowed(function, "execute-api:ManageConnections")]
        assert any(arn.endswith("/live/DELETE/@connections/*") for arn in arns), function
        assert "WS_ENDPOINT" in variables(FUNCTIONS[function]), function


def test_authorizer_may_update_an_item_and_nothing_more() -> None:
    assert actions("AuthorizerFunction") == {"dynamodb:GetItem", "dynamodb:Query", "dynamodb:UpdateItem"}
