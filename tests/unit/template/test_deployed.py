"""The template as AWS gets it: after the SAM transform, which adds roles, policies, versions and aliases of its own."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from local import template
from local.place import ROOT

# Services whose permissions cannot be limited to a resource: X-Ray, log delivery, Lambda's network interfaces.
_NO_RESOURCE = re.compile(
    r"(xray:Put|xray:GetSampling|logs:\w*LogDeliver|logs:\w*Resource|logs:DescribeLogGroups|ec2:|cloudwatch:DescribeAlarms$)"
)


@cache
def resources() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = template.transformed()["Resources"]
    return found


def of_type(kind: str) -> dict[str, dict[str, Any]]:
    return {name: each["Properties"] for name, each in resources().items() if each["Type"] == kind}


FUNCTIONS = sorted(of_type("AWS::Lambda::Function"))
ROLES = sorted(of_type("AWS::IAM::Role"))
MACHINES = sorted(of_type("AWS::StepFunctions::StateMachine"))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(name: str) -> list[dict[str, Any]]:
    """Everything that the role may do, with the parts that only an option adds."""
    role = of_type("AWS::IAM::Role")[name]
    documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
    for arn in role.get("ManagedPolicyArns", []):
        chosen = arn["Fn::If"][1] if "Fn::If" in arn else arn
        if "Ref" in chosen:
            documents.append(of_type("AWS::IAM::ManagedPolicy")[chosen["Ref"]]["PolicyDocument"])
    found = [statement for document in documents for statement in document["Statement"]]
    return [statement["Fn::If"][1] if "Fn::If" in statement else statement for statement in found]


@pytest.mark.parametrize("name", ROLES)
def test_no_role_is_wider_than_named_actions_on_our_own_resources(name: str) -> None:
    for statement in statements(name):
        for action in listed(statement["Action"]):
            assert "*" not in action, action
            if "*" in listed(statement["Resource"]) and statement["Effect"] == "Allow":
                assert _NO_RESOURCE.match(action), f"{action} on every resource"


@pytest.mark.parametrize("name", ROLES)
def test_no_role_has_a_policy_of_awss_own_but_codedeploys(name: str) -> None:
    arns = [str(arn) for arn in of_type("AWS::IAM::Role")[name].get("ManagedPolicyArns", [])]
    assert [arn for arn in arns if ":iam::aws:policy/" in arn and name != "RolloutRole"] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_its_own_role_with_log_permissions(name: str) -> None:
    role = of_type("AWS::Lambda::Function")[name]["Role"]["Fn::GetAtt"][0]
    assert role == name.removesuffix("Function") + "Role"
    logs = [s for s in statements(role) if "logs:PutLogEvents" in listed(s["Action"])]
    assert [statement["Resource"] for statement in logs] == [{"Fn::GetAtt": ["LogGroup", "Arn"]}]


def test_function_with_a_queue_may_read_that_queue_alone() -> None:
    readers: dict[str, list[Any]] = {}
    for name in FUNCTIONS:
        role = name.removesuffix("Function") + "Role"
        may = [s for s in statements(role) if "sqs:ReceiveMessage" in listed(s["Action"])]
        if may:
            readers[name] = [resource["Fn::GetAtt"][0] for s in may for resource in listed(s["Resource"])]
    mappings = of_type("AWS::Lambda::EventSourceMapping").values()
    mapped = {m["FunctionName"]["Ref"].removesuffix("Aliaslive"): m["EventSourceArn"]["Fn::GetAtt"] for m in mappings}
    assert len(mapped) >= 6
    assert readers == {name: [queue] for name, (queue, _) in mapped.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_alias_that_moves_gradually(name: str) -> None:
    alias = resources()[f"{name}Aliaslive"]
    assert "CodeDeployLambdaAliasUpdate" in alias["UpdatePolicy"]
    versions = [each for other, each in resources().items() if other.startswith(f"{name}Version")]
    assert [version["DeletionPolicy"] for version in versions] == ["Retain"]


def test_nothing_calls_a_function_but_by_its_alias_or_version() -> None:
    called = [
        *(p["FunctionName"] for p in of_type("AWS::Lambda::Permission").values()),
        *(m["FunctionName"] for m in of_type("AWS::Lambda::EventSourceMapping").values()),
        *(i["IntegrationUri"] for i in of_type("AWS::ApiGatewayV2::Integration").values() if "IntegrationUri" in i),
        *(a["AuthorizerUri"] for a in of_type("AWS::ApiGatewayV2::Authorizer").values()),
    ]
    assert [uri for uri in called if "FunctionAliaslive" not in str(uri)] == []


@pytest.mark.parametrize("name", MACHINES)
def test_machine_names_function_versions_so_executions_keep_their_code(name: str) -> None:
    named = of_type("AWS::StepFunctions::StateMachine")[name]["DefinitionSubstitutions"]
    functions = [value["Ref"] for key, value in named.items() if key not in ("Partition", "BatchMachineArn")]
    assert functions
    assert all(re.fullmatch(r"\w+FunctionVersion[0-9a-f]{10}", ref) for ref in functions)
    assert resources()[f"{name}Version"]["DeletionPolicy"] == "Retain"
    assert f"{name}Aliaslive" in resources()


def test_executions_are_started_by_the_machines_alias() -> None:
    for name in FUNCTIONS:
        variables = of_type("AWS::Lambda::Function")[name]["Environment"]["Variables"]
        machines = [value for key, value in variables.items() if key.endswith("_MACHINE_ARN")]
        assert [ref for ref in machines if not ref["Ref"].endswith("MachineAliaslive")] == []


def versions(changed: dict[str, Any]) -> set[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(template, "expanded", lambda: changed)
        return {name for name in template.transformed()["Resources"] if "FunctionVersion" in name}


@pytest.mark.parametrize("change", ["layer", "release"])
def test_changed_product_code_or_parameters_publish_every_function(change: str) -> None:
    changed = template.expanded()
    before = versions(template.expanded())
    if change == "layer":
        changed["Resources"]["CoreLayer"]["Properties"]["ContentUri"] = {"Bucket": "b", "Key": "other"}
    else:
        changed["Globals"]["Function"]["Environment"]["Variables"]["RELEASE"] = "other"
    assert len(before) == len(FUNCTIONS)
    assert versions(changed) & before == set()


def test_layers_outlive_the_deployment_that_replaces_them() -> None:
    layers = [each for each in resources().values() if each["Type"] == "AWS::Lambda::LayerVersion"]
    assert [layer["DeletionPolicy"] for layer in layers] == ["Retain"] * 3


# Properties that name something else, and names that need be unique only within a resource of the stack.
REFERENCES = {"FunctionName", "MetricName", "StageName", "ApplicationName", "DeploymentConfigName", "TableName"}
WITHIN_THE_STACK = {
    ("AWS::ApiGatewayV2::Authorizer", "Name"),
    ("AWS::Lambda::Alias", "Name"),
    ("AWS::StepFunctions::StateMachineAlias", "Name"),
    ("AWS::ApiGatewayV2::DomainName", "DomainName"),
    ("AWS::ApiGatewayV2::ApiMapping", "DomainName"),
    ("AWS::Route53::RecordSet", "Name"),
    ("AWS::SNS::Topic", "DisplayName"),
    ("AWS::Logs::MetricFilter", "LogGroupName"),
}


def test_two_stacks_of_an_account_share_no_name() -> None:
    """Every explicit name contains the stack's name."""
    named = {
        f"{name}.{key}": value
        for name, each in resources().items()
        for key, value in each["Properties"].items()
        if key.endswith("Name") and key not in REFERENCES and (each["Type"], key) not in WITHIN_THE_STACK
    }
    assert len(named) >= 10
    variables = of_type("AWS::Lambda::Function")["ApiFunction"]["Environment"]["Variables"]
    for name in ("SECRETS_PREFIX", "GSE_CREDENTIALS_ID", "CALLBACK_ROOT_NAME", "POWERTOOLS_METRICS_NAMESPACE"):
        named[name] = variables[name]
    for name, alarm in of_type("AWS::CloudWatch::Alarm").items():
        if not str(alarm.get("Namespace", "AWS/")).startswith("AWS/"):
            named[name] = alarm["Namespace"]
    assert [name for name, value in named.items() if value and "AWS::StackName" not in json.dumps(value)] == []
    arns = re.findall(r":secret:([^\"]*)|:parameter([^\"]*)", json.dumps(resources()))
    assert arns
    assert all("${AWS::StackName}" in "".join(arn) for arn in arns)


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARN", "ERROR"])
def test_metrics_pass_whatever_the_log_level(level: str) -> None:
    """For Lambda an EMF line has the level INFO, so WARN would drop it."""
    logging = of_type("AWS::Lambda::Function")["CompensateFunction"]["LoggingConfig"]
    condition, debugging, else_ = logging["ApplicationLogLevel"]["Fn::If"]
    assert condition == "Debugging"
    assert (debugging if level == "DEBUG" else else_) in {"DEBUG", "INFO"}
    assert logging["SystemLogLevel"] == "INFO"


@pytest.mark.parametrize("name", sorted(of_type("AWS::CloudWatch::Alarm")))
def test_alarm_reads_missing_data_as_what_it_is(name: str) -> None:
    """Counts of events are missing while there are none; what is told now and then stays as it was last told. Nothing
    is `breaching`: such an alarm would be raised as soon as it is created."""
    alarm = of_type("AWS::CloudWatch::Alarm")[name]
    metrics = [each["MetricStat"]["Metric"]["MetricName"] for each in alarm.get("Metrics", []) if "MetricStat" in each]
    told = {"OldestOverdue", "WaitingRequests", "CompensationInterval", "CleanUpStopped"}
    meaning = "ignore" if told & {alarm.get("MetricName"), *metrics} else "notBreaching"
    assert alarm["TreatMissingData"] == meaning


# docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-delay-queues.html
LONGEST_DELAY = 900


@pytest.mark.parametrize("queue", ["Callbacks", "Compensation", "Wakeups"])
def test_delayed_message_is_not_old_before_a_failed_receive(queue: str) -> None:
    """The age of a message counts from when it was sent, its delay included; a failed one comes back after a while."""
    alarm = of_type("AWS::CloudWatch::Alarm")[f"{queue}AgeAlarm"]
    hidden = of_type("AWS::SQS::Queue")[f"{queue}Queue"]["VisibilityTimeout"]
    assert int(alarm["Threshold"]) >= LONGEST_DELAY + int(hidden)


SAMPLES, MISSING = 5, None


@pytest.mark.parametrize(
    ("told", "before", "after"),
    [
        ([MISSING] * 5, "INSUFFICIENT_DATA", "INSUFFICIENT_DATA"),
        ([MISSING] * 4 + [SAMPLES], "INSUFFICIENT_DATA", "OK"),
        ([SAMPLES] * 5, "OK", "OK"),
        ([SAMPLES] * 4 + [MISSING], "OK", "OK"),
        ([SAMPLES] * 3 + [MISSING] * 2, "OK", "ALARM"),
        ([MISSING] * 5, "ALARM", "ALARM"),
        ([MISSING] * 4 + [SAMPLES], "ALARM", "OK"),
    ],
)
def test_silent_compensation_raises_its_alarm_and_a_new_stack_does_not(
    told: list[int | None], before: str, after: str
) -> None:
    """As CloudWatch evaluates it: docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html.

    It looks at a few more periods than EvaluationPeriods; without any data, the state is kept (`ignore`).
    """
    alarm = of_type("AWS::CloudWatch::Alarm")["CompensationSilentAlarm"]
    assert [metric["Expression"] for metric in alarm["Metrics"] if "Expression" in metric] == ["FILL(written, 0)"]
    periods, threshold = alarm["EvaluationPeriods"], alarm["Threshold"]
    assert (alarm["ComparisonOperator"], alarm["TreatMissingData"]) == ("LessThanThreshold", "ignore")
    filled = [value or 0 for value in told] if any(told) else []
    state = before
    if filled:
        state = "ALARM" if all(value < threshold for value in filled[-periods:]) else "OK"
    assert state == after


@pytest.mark.parametrize("name", ["AccessLogGroup", "MachineLogGroup"])
def test_groups_that_aws_writes_to_need_no_resource_policy(name: str) -> None:
    """In an account with many APIs the policy is full: docs.aws.amazon.com/step-functions/latest/dg/cw-logs.html."""
    assert of_type("AWS::Logs::LogGroup")[name]["LogGroupName"]["Fn::Sub"].startswith("/aws/vendedlogs/")


def test_executions_that_start_executions_do_so_by_the_alias() -> None:
    """An unqualified ARN runs the newest definition, even while it is deployed or after it was rolled back."""
    named = of_type("AWS::StepFunctions::StateMachine")["BatchMachine"]["DefinitionSubstitutions"]["BatchMachineArn"]
    assert named["Fn::Sub"].endswith(":stateMachine:${AWS::StackName}-batch:live")
    for path in (ROOT / "statemachines").glob("*.asl.json"):
        assert "$$.StateMachine.Id" not in path.read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_failed_and_timed_out_executions_raise_an_alarm_and_are_logged(name: str) -> None:
    for metric in ("Failed", "TimedOut"):
        alarm = of_type("AWS::CloudWatch::Alarm")[f"{name.removesuffix('Machine')}{metric}Alarm"]
        assert alarm["MetricName"] == f"Executions{metric}"
        assert alarm["Dimensions"] == [{"Name": "StateMachineArn", "Value": {"Ref": name}}]
    logging = of_type("AWS::StepFunctions::StateMachine")[name]["LoggingConfiguration"]
    assert (logging["Level"], logging["IncludeExecutionData"]) == ("ERROR", False)


def test_throttles_of_the_table_and_of_every_index_raise_an_alarm() -> None:
    table = of_type("AWS::DynamoDB::Table")["Table"]
    for side in ("Read", "Write"):
        alarm = of_type("AWS::CloudWatch::Alarm")[f"Table{side}ThrottlesAlarm"]
        watched = [metric["MetricStat"]["Metric"] for metric in alarm["Metrics"] if "MetricStat" in metric]
        # Alarms on DynamoDB's metrics ignore missing data: without FILL one that was raised would never end.
        assert [m["Expression"] for m in alarm["Metrics"] if "Expression" in m] == ["SUM(FILL(METRICS(), 0))"]
        assert {metric["MetricName"] for metric in watched} == {f"{side}ThrottleEvents"}
        indexes = {d["Value"] for metric in watched for d in metric["Dimensions"] if d["Name"].startswith("Global")}
        assert indexes == {index["IndexName"] for index in table["GlobalSecondaryIndexes"]}


CALL_OUT = ("Api", "DeliverCallback", "Compensate", "PrepareFile", "DispatchTransfer", "PollTransfer", "FinishJob")
MORE_THAT_CALL_OUT = ("PullPages", "RenderRanges", "RunBatchSlice", "Ingest", "StartScheduledBatches")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_call_out_and_no_others_join_the_private_network(name: str) -> None:
    config = of_type("AWS::Lambda::Function")[name].get("VpcConfig")
    if name.removesuffix("Function") not in CALL_OUT + MORE_THAT_CALL_OUT:
        assert config is None
        return
    assert config is not None
    assert config["Fn::If"][0] == "InVpc"
    managed = of_type("AWS::IAM::Role")[name.removesuffix("Function") + "Role"]["ManagedPolicyArns"]
    assert {"Fn::If": ["InVpc", {"Ref": "JoinNetwork"}, {"Ref": "AWS::NoValue"}]} in managed


def test_local_cloud_enforces_exactly_the_deployed_permissions() -> None:
    """Except aliases, which state machines of the emulator do not have."""
    local = template.load()["Resources"]
    for kind in ("AWS::IAM::Role", "AWS::IAM::ManagedPolicy"):
        for name, properties in of_type(kind).items():
            if name in local:
                without_aliases = json.loads(json.dumps(properties).replace("MachineAliaslive", "Machine"))
                assert local[name]["Properties"] == without_aliases, name
    assert {f"{name.removesuffix('Function')}Role" for name in FUNCTIONS} <= set(local)
