"""Checks of `make deploy` before it builds anything."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError

from local import preflight, sam, template
from local.progress import Failure
from tests.support.template import functions as template_functions

KNOWN = template.load()["Parameters"]


class Account:
    """AWS with the three answers that the check needs."""

    def __init__(self, limit: int = 1000, free: int = 1000, stack: str | None = None, known: bool = True) -> None:
        self.limit, self.free, self.stack, self.known = limit, free, stack, known
        self.deployed: dict[str, str] = {}
        self.failure: Exception | None = None
        self.table: dict[str, Any] | None = None
        self.bucket = False

    def __call__(self, service: str) -> Account:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if not self.known:
            raise NoCredentialsError
        return {"Account": "123456789012"}

    def get_account_settings(self) -> dict[str, Any]:
        limits = {"ConcurrentExecutions": self.limit, "UnreservedConcurrentExecutions": self.free}
        return {"AccountLimit": limits}

    def describe_table(self, TableName: str) -> dict[str, Any]:
        if self.table is None:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "DescribeTable")
        return {"Table": self.table}

    def head_bucket(self, Bucket: str) -> None:
        if not self.bucket:
            raise ClientError({"Error": {"Code": "404"}}, "HeadBucket")

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        if self.stack is None:
            message = f"Stack with id {StackName} does not exist"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "DescribeStacks")
        parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in self.deployed.items()]
        return {"Stacks": [{"StackStatus": self.stack, "Parameters": parameters}]}


def check(account: Account, region: str | None = "eu-central-1", **wanted: str) -> list[str]:
    told: list[str] = []
    preflight.check(account, region, "tidegate", wanted, told.append)
    return told


@pytest.mark.parametrize("limit", [10, 50, 200, 1000])
def test_defaults_fit_every_account(limit: int) -> None:
    told = check(Account(limit, limit))
    assert any("are few" in line for line in told) == (limit < 200)


@pytest.mark.parametrize(("limit", "reserved", "fits"), [(10, 1, False), (150, 51, False), (150, 50, True)])
def test_reservation_must_leave_100_unreserved(limit: int, reserved: int, fits: bool) -> None:
    if fits:
        check(Account(limit, limit), SubmitConcurrency=str(reserved))
        return
    with pytest.raises(Failure, match=f"SubmitConcurrency={reserved} does not fit"):
        check(Account(limit, limit), SubmitConcurrency=str(reserved))


def reservations(account: Account, **wanted: str) -> dict[str, str]:
    return preflight.check(account, "eu-central-1", "tidegate", wanted, lambda _: None).reservations


@pytest.mark.parametrize(("limit", "reserves"), [(10, 0), (200, 0), (799, 0), (800, 300), (1000, 300)])
def test_large_account_reserves_concurrency_for_api_authorizer_and_steps(limit: int, reserves: int) -> None:
    assert preflight.reserved_by(reservations(Account(limit, limit))) == reserves


def test_what_the_stack_holds_already_counts_as_free_for_it() -> None:
    account = Account(500, 200, stack="UPDATE_COMPLETE")
    with pytest.raises(Failure, match="SubmitConcurrency=300 does not fit"):
        reservations(account, SubmitConcurrency="300")
    account.deployed = {name: str(value) for name, value in preflight.USUAL.items()}
    assert reservations(account, SubmitConcurrency="300") == {"SubmitConcurrency": "300"}


def test_later_deployment_leaves_reservations_as_the_operator_set_them() -> None:
    account = Account(1000, 995, stack="UPDATE_COMPLETE")
    account.deployed = {"SubmitConcurrency": "5", "ApiConcurrency": "0"}
    assert reservations(account) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"VpcSubnetIds": "subnet-1,subnet-2"}, "VpcSubnetIds needs VpcSecurityGroupIds"),
        ({"DomainName": "download.example.com"}, "DomainName needs CertificateArn"),
        ({"WebSocketDomainName": "live.example.com"}, "WebSocketDomainName needs CertificateArn"),
        ({"HostedZoneId": "Z1"}, "HostedZoneId needs DomainName"),
        ({"TransferEngine": "gse"}, "TransferEngine=gse needs GseBaseUrl and GseSourceAgentId"),
        ({"RequestPolicies": "{download: 5}"}, "RequestPolicies is not a JSON object"),
        ({"ChannelCapacities": "[8]"}, "ChannelCapacities is not a JSON object"),
        ({"UrlAllowList": ",".join(f"host-{n}.internal.example.com" for n in range(80))}, "4096"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_made(given: dict[str, str], says: str) -> None:
    with pytest.raises(Failure, match=says):
        check(Account(), **given)


def test_deploy_with_gse_says_that_projects_need_grants() -> None:
    needed = {"GseBaseUrl": "https://gse.example", "GseSourceAgentId": "source"}
    account = Account(stack="UPDATE_COMPLETE")
    account.deployed = needed | {"TransferEngine": "gse"}

    assert "an admin grants it targets, directories and" in " ".join(check(account))
    assert "grants" not in " ".join(check(Account()))


def test_traces_are_refused_where_aws_has_none() -> None:
    check(Account(), Tracing="yes")
    with pytest.raises(Failure, match="X-Ray does not trace functions in cn-north-1"):
        check(Account(), "cn-north-1", Tracing="yes")


def test_values_of_an_earlier_deployment_complete_what_is_given() -> None:
    account = Account(stack="UPDATE_COMPLETE")
    account.deployed = {"VpcSecurityGroupIds": "sg-1", "AdminKeySha256": "****"}
    check(account, VpcSubnetIds="subnet-1")


def test_long_stack_name_is_refused() -> None:
    """Step Functions allows names of 80 letters, and a machine's name is the stack's with a suffix."""
    with pytest.raises(Failure, match="71 letters"):
        preflight.check(Account(), "eu-central-1", "t" * 71, {}, lambda _: None)
    preflight.check(Account(), "us-gov-west-1", "t" * 70, {}, lambda _: None)


def test_what_was_asked_for_is_reserved_and_nothing_else() -> None:
    assert reservations(Account(), StepConcurrency="20") == {"StepConcurrency": "20"}
    with pytest.raises(Failure, match="StepConcurrency=20 does not fit"):
        reservations(Account(150, 150), StepConcurrency="20")


def test_reservations_are_those_of_the_template() -> None:
    """Each parameter, by how many functions reserve it."""
    functions = [str(each.get("ReservedConcurrentExecutions")) for each in template_functions().values()]
    assert {name: sum(f"'{name}'" in text for text in functions) for name in preflight.RESERVES} == preflight.RESERVES


@pytest.mark.parametrize(
    ("account", "region", "says"),
    [
        (Account(), None, "region"),
        (Account(known=False), "eu-central-1", "credentials"),
        (Account(stack="ROLLBACK_COMPLETE"), "eu-central-1", "delete-stack"),
        (Account(stack="UPDATE_ROLLBACK_FAILED"), "eu-central-1", "continue-update-rollback"),
        (Account(stack="UPDATE_IN_PROGRESS"), "eu-central-1", "another deployment is under way"),
    ],
)
def test_impossible_deployment_is_refused_with_a_remedy(account: Account, region: str | None, says: str) -> None:
    with pytest.raises(Failure) as failed:
        check(account, region)
    assert says in str(failed.value)


@pytest.mark.parametrize(
    "failure",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "not authorized"}}, "DescribeStacks"),
        ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "DescribeStacks"),
        ClientError({"Error": {"Code": "ValidationError", "Message": "1 validation error"}}, "DescribeStacks"),
        ConnectTimeoutError(endpoint_url="https://cloudformation.eu-central-1.amazonaws.com"),
    ],
)
def test_unreadable_stack_is_not_taken_for_an_absent_one(failure: Exception) -> None:
    """As a new stack it would be deployed without protection of its table."""
    account = Account(stack="UPDATE_COMPLETE")
    account.failure = failure
    with pytest.raises(Failure, match="does not say whether the stack tidegate exists"):
        check(account)


OWN_TABLE = template.load()["Resources"]["Table"]["Properties"]
GOOD_TABLE = {"TableStatus": "ACTIVE"} | {name: OWN_TABLE[name] for name in ("KeySchema", "GlobalSecondaryIndexes")}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (GOOD_TABLE, None),
        (None, "cannot be read"),
        (GOOD_TABLE | {"TableStatus": "CREATING"}, "is CREATING"),
        (GOOD_TABLE | {"GlobalSecondaryIndexes": OWN_TABLE["GlobalSecondaryIndexes"][:2]}, "keys and indexes"),
        (GOOD_TABLE | {"KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}]}, "keys and indexes"),
    ],
)
def test_existing_table_must_be_one_of_tidegates(table: dict[str, Any] | None, says: str | None) -> None:
    account = Account()
    account.table = table
    if says is None:
        check(account, ExistingTable="restored")
        return
    with pytest.raises(Failure, match=says):
        check(account, ExistingTable="restored")


def test_existing_bucket_must_be_there() -> None:
    account = Account()
    with pytest.raises(Failure, match="ExistingBucket=files cannot be read"):
        check(account, ExistingBucket="files")
    account.bucket = True
    check(account, ExistingBucket="files")


def test_params_are_merged_with_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    config.write_text('[default.deploy.parameters]\nparameter_overrides = "LogLevel=WARN CollectWindowSeconds=5"\n')

    merged = preflight.parameters(config, "CollectWindowSeconds=9 'AlarmEmail=a b@example.com'", KNOWN)

    assert merged == {"LogLevel": "WARN", "CollectWindowSeconds": "9", "AlarmEmail": "a b@example.com"}


@pytest.mark.parametrize("given", ["Nonsense=1", "LogLevel"])
def test_unknown_parameter_is_refused_before_anything_is_built(tmp_path: Path, given: str) -> None:
    with pytest.raises(Failure, match="does not set a parameter"):
        preflight.parameters(tmp_path / "none.toml", given, KNOWN)


def test_values_are_quoted_as_sam_reads_them() -> None:
    assert preflight.override("RequestPolicies", '{"a": 1}') == 'RequestPolicies="{\\"a\\": 1}"'


@pytest.mark.parametrize(
    ("exists", "given", "deployed"),
    [
        (False, "", ["no", "yes"]),
        (False, "TableDeletionProtection=no", ["no", "no"]),
        (True, "", [None]),
        (True, "TableDeletionProtection=yes", ["yes"]),
    ],
)
def test_new_stacks_table_is_protected_after_its_creation(
    exists: bool, given: str, deployed: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sam keeps the value of a parameter that a deployment does not name."""
    calls = deployments(monkeypatch, exists, given)
    assert [call.get("TableDeletionProtection") for call in calls] == deployed


def deployments(
    monkeypatch: pytest.MonkeyPatch, exists: bool, given: str = "", key: str = "keep"
) -> list[dict[str, str]]:
    """The parameters of each call of `sam deploy` that `make deploy` makes."""
    calls: list[dict[str, str]] = []

    def deploy(wanted: dict[str, str], *, confirmed: bool = False) -> int:
        calls.append(dict(wanted))
        return 0

    monkeypatch.setenv("PARAMS", given)
    monkeypatch.setenv("ADMIN_KEY", key)
    monkeypatch.setattr(preflight, "check", lambda *_: preflight.Found(exists, {}))
    monkeypatch.setattr(sam, "build", lambda: 0)
    monkeypatch.setattr(sam, "stamp", lambda *_: None)
    monkeypatch.setattr(sam, "_sam_deploy", deploy)
    assert sam.deploy() == 0
    return calls


def test_break_glass_is_for_one_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAK_GLASS", "yes")
    assert [call["BreakGlass"] for call in deployments(monkeypatch, True)] == ["yes"]
    monkeypatch.delenv("BREAK_GLASS")
    assert [call["BreakGlass"] for call in deployments(monkeypatch, True)] == ["no"]


@pytest.mark.parametrize(
    ("terminal", "ci", "confirmed", "asks"),
    [(True, "", False, True), (True, "", True, False), (True, "true", False, False), (False, "", False, False)],
)
def test_deployment_asks_only_somebody_who_can_answer(
    terminal: bool, ci: str, confirmed: bool, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[Any]] = []

    def run(command: list[Any], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(subprocess, "run", run)
    assert sam._sam_deploy({}, confirmed=confirmed) == 0
    assert ("--no-confirm-changeset" not in ran[0]) == asks


@pytest.mark.parametrize(
    ("exists", "kept_here", "unattended", "given", "key", "sets"),
    [
        (False, False, False, "", "", True),
        (False, False, True, "", "", True),
        (True, True, False, "", "", True),
        (True, False, False, "", "", True),
        (True, True, True, "", "", True),
        # A build server starts in an empty directory: a new key would lock everybody out.
        (True, False, True, "", "", False),
        (True, True, False, "", "keep", False),
    ],
)
def test_build_server_without_the_admin_key_keeps_the_deployed_one(
    exists: bool,
    kept_here: bool,
    unattended: bool,
    given: str,
    key: str,
    sets: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "aws-admin-key"
    if kept_here:
        path.write_text("tga_1")
    monkeypatch.setattr(sam, "AWS_KEY", path)
    monkeypatch.setattr(sam, "ROOT", tmp_path)
    monkeypatch.setattr(sam, "unattended", lambda: unattended)
    for call in deployments(monkeypatch, exists, given, key):
        assert ("AdminKeySha256" in call) == sets


def test_given_hash_of_an_admin_key_is_deployed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = deployments(monkeypatch, False, f"AdminKeySha256={'a' * 64}", "")
    assert {call["AdminKeySha256"] for call in calls} == {"a" * 64}
