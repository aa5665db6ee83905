"""What must be true of the deployed resources, and of the folders that they are made from."""

from __future__ import annotations

import json
import re

import pytest

from local.place import API_ID
from tests.bench import money
from tests.support.template import ROOT, directory_of, functions, load_template, queue_functions, resources
from tidegate.files.model import PARTS_SECONDS
from tidegate_client.watching import BEAT

QUEUES = resources("AWS::SQS::Queue")
DEAD_LETTERS = {
    q["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
    for q in QUEUES.values()
    if "RedrivePolicy" in q["Properties"]
}
ALARMS = [alarm["Properties"] for alarm in resources("AWS::CloudWatch::Alarm").values()]


def alarmed(metric: str) -> set[str]:
    return {
        dimension["Value"]["Fn::GetAtt"][0]
        for alarm in ALARMS
        if alarm.get("MetricName") == metric
        for dimension in alarm["Dimensions"]
    }


def test_every_queue_has_dead_letters() -> None:
    assert {name for name, queue in QUEUES.items() if "RedrivePolicy" not in queue["Properties"]} == DEAD_LETTERS


def test_every_dead_letter_queue_has_an_alarm_on_its_depth() -> None:
    assert alarmed("ApproximateNumberOfMessagesVisible") >= DEAD_LETTERS


def test_every_queue_has_an_alarm_on_its_oldest_message() -> None:
    assert alarmed("ApproximateAgeOfOldestMessage") >= set(QUEUES) - DEAD_LETTERS


def test_errors_and_throttles_have_alarms_and_every_alarm_tells_someone() -> None:
    assert {"FailedInvocations", "Throttles", "5xx"} <= {alarm.get("MetricName") for alarm in ALARMS}
    assert all(alarm["AlarmActions"] == [{"Ref": "AlarmTopic"}] for alarm in ALARMS)


def test_table_is_on_demand_recoverable_encrypted_and_expires_records() -> None:
    table = resources("AWS::DynamoDB::Table")["Table"]["Properties"]
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    assert {index["IndexName"] for index in table["GlobalSecondaryIndexes"]} == {"gsi1", "gsi2", "due"}


def test_files_bucket_is_private_encrypted_and_clears_stale_uploads() -> None:
    bucket = resources("AWS::S3::Bucket")["FilesBucket"]["Properties"]
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert "BucketEncryption" in bucket
    rules = bucket["LifecycleConfiguration"]["Rules"]
    aborted = {
        rule.get("Prefix", ""): rule["AbortIncompleteMultipartUpload"]
        for rule in rules
        if "AbortIncompleteMultipartUpload" in rule
    }
    assert aborted[""] == {"DaysAfterInitiation": PARTS_SECONDS // 86400}
    assert aborted["exports/"] == aborted["batches/"] == {"DaysAfterInitiation": 1}
    policy = resources("AWS::S3::BucketPolicy")["FilesBucketPolicy"]
    assert policy["Condition"] == "OwnBucketOnAws"
    assert "aws:SecureTransport" in str(policy)


@pytest.mark.parametrize("kind", ["AWS::DynamoDB::Table", "AWS::S3::Bucket"])
def test_data_outlives_the_stack(kind: str) -> None:
    """But a failed creation leaves nothing behind: the next try could not use the names again."""
    for resource in resources(kind).values():
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")


def test_stack_with_another_table_and_bucket_uses_nothing_of_its_own() -> None:
    """Everything names the table and the bucket in use; only their own resources name the stack's own."""
    own = {"TableInUse", "TableInUseArn", "BucketInUse", "BucketInUseArn", "FilesBucketPolicy"}
    others = {name: each for name, each in load_template()["Resources"].items() if name not in own}
    text = json.dumps([others, load_template()["Globals"], load_template()["Outputs"]], default=str)
    named = re.findall(r'"(?:Table|FilesBucket)"|\$\{(?:Table|FilesBucket)[.}]', text)
    assert named == ['"Table"', '"FilesBucket"'], "the two keys in Resources"
    conditions = load_template()["Conditions"]
    for store in ("Table", "Bucket"):
        own_one = {"Table": "Table", "Bucket": "FilesBucket"}[store]
        assert load_template()["Resources"][own_one]["Condition"] == f"Own{store}"
        assert conditions[f"Own{store}"] == {"Fn::Equals": [{"Ref": f"Existing{store}"}, ""]}
        for value in (f"{store}InUse", f"{store}InUseArn"):
            condition, ours, given = resources("AWS::SSM::Parameter")[value]["Properties"]["Value"]["Fn::If"]
            assert condition == f"Own{store}"
            assert own_one in json.dumps(ours)
            assert f"Existing{store}" in json.dumps(given)


def test_no_arn_names_a_partition() -> None:
    texts = {path: path.read_text() for path in (ROOT / "template.yaml", *(ROOT / "statemachines").glob("*.json"))}
    assert [path.name for path, text in texts.items() if "arn:aws" in text] == []


def test_nothing_is_reserved_unless_asked_for() -> None:
    """A new account may run 10 functions at once, and a reservation must leave 100 (or all 10) unreserved."""
    assert load_template()["Parameters"]["SubmitConcurrency"]["Default"] == 0


def test_operators_are_told_what_every_function_may_take() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    table = page.partition("| function |")[2].partition("\n\n")[0]
    assert {directory_of(function) for function in functions().values()} == {
        name for name in re.findall(r"`(\w+)`", table) if (ROOT / "functions" / name).exists()
    }
    for queue, (directory, mapping) in queue_functions().items():
        (row,) = (line for line in table.splitlines() if f"`{directory}`" in line)
        most = mapping.get("ScalingConfig", {}).get("MaximumConcurrency")
        assert most is None or f"| {most}" in row, queue


def test_operators_are_told_what_an_idle_stack_is_billed_for() -> None:
    (row,) = re.findall(r"^\| an idle stack.*", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    billed = money.billed_anyway()
    alarmed, metrics = re.findall(r"(\d+) (?:alarmed )?metrics,", billed.note)
    assert f"{alarmed} alarmed metrics ({money.rollout_metrics()} of them" in row
    assert f", {metrics} metrics" in row
    (dollars,) = re.findall(r"([\d.]+) for what AWS bills in any case", row)
    assert float(dollars) == pytest.approx(billed.value, abs=0.05)


def test_functions_of_the_template_are_the_folders_of_the_tree() -> None:
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}
    assert {directory_of(function) for function in functions().values()} == folders


def test_handlers_are_short_and_use_no_boto3() -> None:
    for path in (ROOT / "functions").glob("*/app.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 60, path
        assert "boto3" not in text, path


def test_open_routes_are_those_of_the_contract_and_all_others_are_authorised() -> None:
    http = [
        r["Properties"]
        for r in resources("AWS::ApiGatewayV2::Route").values()
        if r["Properties"]["ApiId"] == {"Ref": "HttpApi"}
    ]
    opened = {route["RouteKey"] for route in http if "AuthorizerId" not in route}
    enrol = "POST /v1/agents/enrol"
    pages = {"GET /", "GET /console/{name}", "GET /docs", "GET /start"}
    assert opened == pages | {"GET /healthz", "GET /openapi.json", enrol}


def test_beat_of_an_idle_host_starts_no_function() -> None:
    """Ten thousand hosts send 18 beats per second, all the time."""
    (route,) = (
        found["Properties"]
        for found in resources("AWS::ApiGatewayV2::Route").values()
        if found["Properties"]["RouteKey"] == json.loads(BEAT)["action"]
    )
    (name,) = re.findall(r"\$\{(\w+)\}", route["Target"]["Fn::Sub"])
    integration = resources("AWS::ApiGatewayV2::Integration")[name]["Properties"]
    assert integration["IntegrationType"] == "MOCK"
    selected = integration["RequestTemplates"][integration["TemplateSelectionExpression"]]
    assert json.loads(selected) == {"statusCode": 200}
    api = resources("AWS::ApiGatewayV2::Api")["WebSocketApi"]["Properties"]
    assert api["RouteSelectionExpression"] == "$request.body.action"


def test_authorizer_sees_requests_without_a_key_too() -> None:
    authorizer = resources("AWS::ApiGatewayV2::Authorizer")["HttpAuthorizer"]["Properties"]
    assert authorizer["AuthorizerResultTtlInSeconds"] == 0
    assert authorizer["IdentitySource"] == []


def test_bucket_keeps_deleted_objects_for_some_days() -> None:
    bucket = resources("AWS::S3::Bucket")["FilesBucket"]["Properties"]
    assert bucket["VersioningConfiguration"]["Fn::If"][:2] == ["OnAws", {"Status": "Enabled"}]
    rules = [rule.get("Fn::If", ["", rule])[1] for rule in bucket["LifecycleConfiguration"]["Rules"]]
    kept = [rule for rule in rules if "NoncurrentVersionExpiration" in rule]
    days = {rule.get("Prefix", ""): rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in kept}
    assert days.pop("") == {"Ref": "DeletedObjectDays"}
    # What is deleted all the time costs no more than a day of storage.
    assert days == {"staging/": 1, "sync/": 1, "verifying/": 1}


def test_no_function_may_delete_versions_of_objects() -> None:
    assert "DeleteObjectVersion" not in json.dumps(load_template(), default=str)


def test_daily_clean_up_is_at_two_in_the_operators_time_zone() -> None:
    daily = functions()["CleanUpFunction"]["Events"]["Daily"]["Properties"]
    assert daily["ScheduleExpression"] == "cron(0 2 * * ? *)"
    assert daily["ScheduleExpressionTimezone"] == {"Ref": "CleanUpTimeZone"}


def test_every_function_logs_to_the_group_with_retention() -> None:
    assert load_template()["Globals"]["Function"]["LoggingConfig"]["LogGroup"] == {"Ref": "LogGroup"}
    assert all("RetentionInDays" in group["Properties"] for group in resources("AWS::Logs::LogGroup").values())


def test_launcher_serves_the_api_under_the_template_id() -> None:
    assert resources("AWS::ApiGatewayV2::Api")["HttpApi"]["Properties"]["Tags"]["ms-custom-id"] == API_ID
