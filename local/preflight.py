"""What can be known before a deployment to AWS is built: who deploys, where, and whether it fits the account."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local.progress import Failure, Say

# Lambda refuses a reservation that would leave the account's other functions fewer than this.
LEFT_UNRESERVED = 100
# Fewer concurrent executions than this are taken by a handful of agents and a batch: worth a word.
COMFORTABLE = 200
# What a stack whose creation failed is left as: CloudFormation can only delete it then.
STUCK = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS"}

Clients = Callable[[str], Any]


def parameters(config: Path, given: str, known: Mapping[str, Any]) -> dict[str, str]:
    """The configuration's parameters, with those of PARAMS in their place."""
    settings = tomllib.loads(config.read_text()) if config.exists() else {}
    overrides = settings.get("default", {}).get("deploy", {}).get("parameters", {}).get("parameter_overrides", "")
    words = overrides if isinstance(overrides, list) else shlex.split(overrides)
    merged: dict[str, str] = {}
    for word in [*words, *shlex.split(given)]:
        name, sign, value = word.partition("=")
        if not sign or name not in known:
            raise Failure(
                f"{word!r} sets no parameter of template.yaml",
                f'write PARAMS="Name=value …" with names of: {", ".join(sorted(known))}',
            )
        merged[name] = value
    return merged


def override(name: str, value: str) -> str:
    """As `sam deploy --parameter-overrides` reads it: a value with blanks or quotes is quoted."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def check(clients: Clients, region: str | None, stack: str, wanted: Mapping[str, str], tell: Say) -> None:
    """Failure, before anything is built or made, if the deployment cannot succeed."""
    if not region:
        raise Failure("no AWS region is set", "export AWS_REGION=eu-central-1, or aws configure set region …")
    account = _account(clients)
    tell(f"  ✓ account {account} in {region}")
    _check_concurrency(clients, int(wanted.get("SubmitConcurrency") or 0), tell)
    _check_stack(clients, stack)


def _account(clients: Clients) -> str:
    try:
        return str(clients("sts").get_caller_identity()["Account"])
    except (ClientError, BotoCoreError) as error:
        raise Failure(
            f"AWS does not accept the credentials: {error}", "aws sso login, or set AWS_PROFILE, then make deploy again"
        ) from error


def _check_concurrency(clients: Clients, reserved: int, tell: Say) -> None:
    try:
        limits = clients("lambda").get_account_settings()["AccountLimit"]
    except (ClientError, BotoCoreError) as error:
        # Deploying needs no right to read the limits; Lambda will say itself what does not fit.
        tell(f"  … the account's Lambda limits are unknown: {error}")
        return
    total, free = limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"]
    if reserved and free - reserved < LEFT_UNRESERVED:
        raise Failure(
            f"SubmitConcurrency={reserved} does not fit: of the account's {total} concurrent executions "
            f"{free} are unreserved, and Lambda keeps {LEFT_UNRESERVED} of them",
            "deploy with SubmitConcurrency=0, or ask for more in Service Quotas (Lambda, Concurrent executions)",
        )
    tell(f"  ✓ {total} concurrent executions, {free} unreserved")
    if total < COMFORTABLE:
        tell(f"  … {total} are few: requests wait when all are busy; Service Quotas raises the limit, for nothing")


def _check_stack(clients: Clients, stack: str) -> None:
    try:
        status = clients("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
    except (ClientError, BotoCoreError):
        return
    if status in STUCK:
        raise Failure(
            f"the stack {stack} is {status}: an earlier creation failed, and it cannot be updated",
            f"aws cloudformation delete-stack --stack-name {stack}, then make deploy again",
        )
