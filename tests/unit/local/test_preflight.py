"""What make deploy finds out before it builds anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from local import preflight, template
from local.progress import Failure

KNOWN = template.load()["Parameters"]


class Account:
    """The three answers that the check asks AWS for."""

    def __init__(self, limit: int = 1000, free: int = 1000, stack: str | None = None, known: bool = True) -> None:
        self.limit, self.free, self.stack, self.known = limit, free, stack, known

    def __call__(self, service: str) -> Account:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if not self.known:
            raise NoCredentialsError
        return {"Account": "123456789012"}

    def get_account_settings(self) -> dict[str, Any]:
        limits = {"ConcurrentExecutions": self.limit, "UnreservedConcurrentExecutions": self.free}
        return {"AccountLimit": limits}

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if self.stack is None:
            raise ClientError({"Error": {"Code": "ValidationError"}}, "DescribeStacks")
        return {"Stacks": [{"StackStatus": self.stack}]}


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


@pytest.mark.parametrize(
    ("account", "region", "says"),
    [
        (Account(), None, "region"),
        (Account(known=False), "eu-central-1", "credentials"),
        (Account(stack="ROLLBACK_COMPLETE"), "eu-central-1", "delete-stack"),
    ],
)
def test_what_cannot_succeed_is_told_with_its_remedy(account: Account, region: str | None, says: str) -> None:
    with pytest.raises(Failure) as failed:
        check(account, region)
    assert says in str(failed.value)


def test_params_are_merged_with_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    config.write_text('[default.deploy.parameters]\nparameter_overrides = "LogLevel=WARN CollectWindowSeconds=5"\n')

    merged = preflight.parameters(config, "CollectWindowSeconds=9 'AlarmEmail=a b@example.com'", KNOWN)

    assert merged == {"LogLevel": "WARN", "CollectWindowSeconds": "9", "AlarmEmail": "a b@example.com"}


@pytest.mark.parametrize("given", ["Nonsense=1", "LogLevel"])
def test_unknown_parameter_is_refused_before_anything_is_built(tmp_path: Path, given: str) -> None:
    with pytest.raises(Failure, match="sets no parameter"):
        preflight.parameters(tmp_path / "none.toml", given, KNOWN)


def test_values_are_quoted_as_sam_reads_them() -> None:
    assert preflight.override("RequestPolicies", '{"a": 1}') == 'RequestPolicies="{\\"a\\": 1}"'
