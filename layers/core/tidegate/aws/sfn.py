"""Step Functions: start by name, look, stop. A name in use means that it was started before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import Busy
from tidegate.queue.model import Request
from tidegate.queue.policies import Policy

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient


class Machines:
    def __init__(self, client: SFNClient) -> None:
        self._client = client

    def start(self, machine_arn: str, name: str, data: Mapping[str, Any]) -> str:
        """The execution's ARN. Starting the same name twice is one execution."""
        try:
            started = self._client.start_execution(stateMachineArn=machine_arn, name=name, input=json.dumps(data))
        except self._client.exceptions.ExecutionAlreadyExists:
            return execution_arn(machine_arn, name)
        return started["executionArn"]

    def status(self, machine_arn: str, name: str) -> str | None:
        """RUNNING, SUCCEEDED, FAILED, TIMED_OUT, ABORTED; None if it was never started."""
        try:
            found = self._client.describe_execution(executionArn=execution_arn(machine_arn, name))
        except self._client.exceptions.ExecutionDoesNotExist:
            return None
        return found["status"]

    def stop(self, machine_arn: str, name: str, cause: str) -> None:
        try:
            self._client.stop_execution(executionArn=execution_arn(machine_arn, name), cause=cause[:200])
        except self._client.exceptions.ExecutionDoesNotExist:
            return


def execution_arn(machine_arn: str, name: str) -> str:
    return f"{machine_arn.replace(':stateMachine:', ':execution:')}:{name}"


class RequestRunner:
    """Implements `services.queue_ports.Runner`: the machine of a request's type, named by request and attempt."""

    def __init__(self, machines: Machines, arns: Mapping[str, str], policies: Mapping[str, Policy]) -> None:
        self._machines = machines
        self._arns = arns
        self._policies = policies

    def start(self, request: Request) -> str:
        data = {
            "project_id": request.project_id,
            "request_id": request.request_id,
            "attempt": request.attempt,
            "deadline": request.deadline,
        }
        try:
            return self._machines.start(self._machine(request), _name(request), data)
        except (ClientError, BotoCoreError) as error:
            raise Busy("the machine could not be started") from error

    def status(self, request: Request) -> str | None:
        return self._machines.status(self._machine(request), _name(request))

    def stop(self, request: Request, why: str) -> None:
        try:
            self._machines.stop(self._machine(request), _name(request), why)
        except (ClientError, BotoCoreError) as error:
            raise Busy("the machine could not be stopped") from error

    def _machine(self, request: Request) -> str:
        return self._arns[self._policies[request.type].machine]


def _name(request: Request) -> str:
    return f"{request.request_id}-{request.attempt}"
