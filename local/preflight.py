"""Checks before a deployment to AWS: the credentials, the region, the parameters and the account's limits."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local import environment, template
from local.progress import Failure, Say

# Lambda refuses a reservation that would leave the account's other functions fewer than this.
LEFT_UNRESERVED = 100
# For how many functions each parameter reserves concurrency, and the reservations if the account has enough.
RESERVES = {"SubmitConcurrency": 1, "ApiConcurrency": 1, "AuthorizerConcurrency": 1, "StepConcurrency": 5}
USUAL = {"SubmitConcurrency": 100, "ApiConcurrency": 100, "AuthorizerConcurrency": 50, "StepConcurrency": 10}
# The usual reservations are made only if this much concurrency is left for the account's other functions.
TO_SPARE = 500
# A few agents and a batch can use up fewer concurrent executions than this, so the deployer is told.
COMFORTABLE = 200
# States of a stack whose creation failed. CloudFormation can then only delete it.
STUCK = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS"}
# A ValidationError of CloudFormation with these words means that there is no such stack.
ABSENT = "does not exist"

# The name of a state machine is that of the stack and a few letters; Step Functions allows 80.
LONGEST_STACK_NAME = 70
# Parameters that need others.
NEEDED = {
    "VpcSubnetIds": ("VpcSecurityGroupIds",),
    "VpcSecurityGroupIds": ("VpcSubnetIds",),
    "DomainName": ("CertificateArn",),
    "WebSocketDomainName": ("CertificateArn",),
    "HostedZoneId": ("DomainName",),
}
NEEDED_BY_GSE = ("GseBaseUrl", "GseSourceAgentId")
# How CloudFormation shows the value of a NoEcho parameter.
HIDDEN = "****"
JSON_PARAMETERS = ("RequestPolicies", "ChannelCapacities")

Clients = Callable[[str], Any]


def parameters(config: Path, given: str, known: Mapping[str, Any]) -> dict[str, str]:
    """Returns the parameters of the configuration file. Parameters that PARAMS names override them."""
    settings = tomllib.loads(config.read_text()) if config.exists() else {}
    overrides = settings.get("default", {}).get("deploy", {}).get("parameters", {}).get("parameter_overrides", "")
    words = overrides if isinstance(overrides, list) else shlex.split(overrides)
    merged: dict[str, str] = {}
    for word in [*words, *shlex.split(given)]:
        name, sign, value = word.partition("=")
        if not sign or name not in known:
            raise Failure(
                f"{word!r} does not set a parameter of template.yaml",
                f'write PARAMS="Name=value …" with names of: {", ".join(sorted(known))}',
            )
        merged[name] = value
    return merged


def override(name: str, value: str) -> str:
    """Returns a parameter, quoted as `sam deploy --parameter-overrides` reads it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


@dataclass(frozen=True)
class Found:
    """The result of the checks: whether the stack exists already, and the concurrency to reserve."""

    exists: bool
    reservations: dict[str, str]


def check(clients: Clients, region: str | None, stack: str, wanted: Mapping[str, str], tell: Say) -> Found:
    """Raises Failure if the deployment cannot succeed, before anything is built or created."""
    if not region:
        raise Failure("no AWS region is set", "export AWS_REGION=eu-central-1, or aws configure set region …")
    account = _account(clients)
    tell(f"  ✓ account {account} in {region}")
    deployed = _deployed(clients, stack)
    values = {**(deployed or {}), **wanted}
    _check_parameters(values, region)
    if values.get("TransferEngine") == "gse":
        tell("  … TransferEngine=gse: a project can send files only where an admin grants it targets, directories and")
        tell("    users: tidegate project update PROJECT --gse-target 'web-*' --gse-dir /data/app --gse-user app")
    _check_stores(clients, values)
    _check_names(stack, region, values)
    reservations = _check_concurrency(clients, wanted, deployed or {}, tell)
    return Found(deployed is not None, reservations)


def _check_parameters(values: Mapping[str, str], region: str) -> None:
    """Raises Failure for mistakes that CloudFormation would find only while it creates resources."""
    if values.get("Tracing") == "yes" and region.startswith("cn-"):
        raise Failure(f"X-Ray does not trace functions in {region}", 'PARAMS="Tracing=no" make deploy')
    needed: dict[str, tuple[str, ...]] = {name: others for name, others in NEEDED.items() if values.get(name)}
    if values.get("TransferEngine") == "gse":
        needed["TransferEngine=gse"] = NEEDED_BY_GSE
    for name, others in needed.items():
        if missing := [other for other in others if not values.get(other)]:
            raise Failure(f"{name} needs {' and '.join(missing)} too", f'PARAMS="{missing[0]}=… …" make deploy')
    for name in JSON_PARAMETERS:
        try:
            is_object = isinstance(json.loads(values.get(name) or "{}"), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise Failure(f"{name} is not a JSON object: {values[name]}", "quote it in PARAMS as template.yaml shows")


def _check_stores(clients: Clients, values: Mapping[str, str]) -> None:
    """Raises Failure if the parameters name an existing table or bucket that the stack cannot use."""
    if table := values.get("ExistingTable"):
        own = template.load()["Resources"]["Table"]["Properties"]
        try:
            found = clients("dynamodb").describe_table(TableName=table)["Table"]
        except (ClientError, BotoCoreError) as error:
            raise Failure(f"ExistingTable={table} cannot be read: {error}", "name a table of this region") from error
        indexes = {index["IndexName"]: index["KeySchema"] for index in found.get("GlobalSecondaryIndexes", [])}
        needed = {index["IndexName"]: index["KeySchema"] for index in own["GlobalSecondaryIndexes"]}
        if found["KeySchema"] != own["KeySchema"] or any(indexes.get(name) != keys for name, keys in needed.items()):
            raise Failure(
                f"ExistingTable={table} has not the keys and indexes of Tidegate's table",
                "restore a table of Tidegate with all its indexes",
            )
        if found["TableStatus"] != "ACTIVE":
            raise Failure(f"ExistingTable={table} is {found['TableStatus']}", "wait until it is ACTIVE")
    if bucket := values.get("ExistingBucket"):
        try:
            clients("s3").head_bucket(Bucket=bucket)
        except (ClientError, BotoCoreError) as error:
            raise Failure(
                f"ExistingBucket={bucket} cannot be read: {error}", "name a bucket of this account"
            ) from error


def _check_names(stack: str, region: str, values: Mapping[str, str]) -> None:
    if len(stack) > LONGEST_STACK_NAME:
        raise Failure(
            f"the stack's name has {len(stack)} letters", f"use a name of at most {LONGEST_STACK_NAME} letters"
        )
    sizes = environment.sizes(stack, region, {name: value for name, value in values.items() if value != HIDDEN})
    function, size = max(sizes.items(), key=lambda pair: pair[1])
    if size > environment.LAMBDA_LIMIT:
        raise Failure(
            f"{function} would have about {size} bytes of environment variables, but Lambda allows "
            f"{environment.LAMBDA_LIMIT}",
            "shorten the stack's name, RequestPolicies, ChannelCapacities or UrlAllowList",
        )


def reserved_by(parameters: Mapping[str, str]) -> int:
    return sum(count * int(parameters.get(name) or 0) for name, count in RESERVES.items())


def _account(clients: Clients) -> str:
    try:
        return str(clients("sts").get_caller_identity()["Account"])
    except (ClientError, BotoCoreError) as error:
        raise Failure(
            f"AWS does not accept the credentials: {error}", "aws sso login, or set AWS_PROFILE, then make deploy again"
        ) from error


def _check_concurrency(
    clients: Clients, wanted: Mapping[str, str], deployed: Mapping[str, str], tell: Say
) -> dict[str, str]:
    """Returns the concurrency to reserve, as parameters of the stack.

    These are the requested values if they fit; else raises Failure. If none were requested, an existing stack keeps its
    values, and a new stack gets the usual values if the account has enough, else 0."""
    requested = {name: wanted[name] for name in RESERVES if name in wanted}
    try:
        limits = clients("lambda").get_account_settings()["AccountLimit"]
    except (ClientError, BotoCoreError) as error:
        # Deploying needs no permission to read the limits, and Lambda itself refuses what does not fit.
        tell(f"  … the account's Lambda limits could not be read: {error}")
        return requested
    total = limits["ConcurrentExecutions"]
    # What this stack has reserved already is available to it.
    free = limits["UnreservedConcurrentExecutions"] + reserved_by(deployed)
    reserved = reserved_by(requested)
    if reserved and free - reserved < LEFT_UNRESERVED:
        names = " ".join(f"{name}={value}" for name, value in requested.items())
        raise Failure(
            f"{names} does not fit: of the account's {total} concurrent executions "
            f"{free} are unreserved, and Lambda keeps {LEFT_UNRESERVED} of them",
            "deploy with 0 instead, or ask for more in Service Quotas (Lambda, Concurrent executions)",
        )
    tell(f"  ✓ {total} concurrent executions, {free} unreserved")
    if total < COMFORTABLE:
        tell(f"  … {total} are few: requests wait while all are busy; Service Quotas raises the limit free of charge")
    if requested:
        return requested
    if deployed:
        # Parameters that are not named keep their values.
        return {}
    usual = {name: str(value) for name, value in USUAL.items()}
    if free - reserved_by(usual) < TO_SPARE:
        return dict.fromkeys(RESERVES, "0")
    tell(f"  ✓ of these {reserved_by(usual)} are kept for submits, the API, the authorizer and the steps of Jobs")
    return usual


def _deployed(clients: Clients, stack: str) -> dict[str, str] | None:
    """Returns the parameters of the deployed stack; None if there is none."""
    try:
        description = clients("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    except (ClientError, BotoCoreError) as error:
        # Only this error means that there is no stack. A new stack's table is protected once the stack is complete.
        if isinstance(error, ClientError) and ABSENT in error.response["Error"].get("Message", ""):
            return None
        raise Failure(
            f"CloudFormation does not say whether the stack {stack} exists: {error}",
            "allow cloudformation:DescribeStacks, or wait a moment, then make deploy again",
        ) from error
    status = description["StackStatus"]
    if status in STUCK:
        raise Failure(
            f"the stack {stack} is {status}: an earlier creation failed, and it cannot be updated",
            f"aws cloudformation delete-stack --stack-name {stack}, then make deploy again",
        )
    if status == "UPDATE_ROLLBACK_FAILED":
        raise Failure(
            f"the stack {stack} is {status}: the last deployment failed, and so did its rollback",
            f"aws cloudformation continue-update-rollback --stack-name {stack}, then make deploy again",
        )
    if status.endswith("_IN_PROGRESS"):
        raise Failure(
            f"the stack {stack} is {status}: another deployment is under way",
            "wait until it ends (aws cloudformation wait stack-update-complete), then make deploy again",
        )
    return {parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in description.get("Parameters", [])}
