"""Step Functions: start by name, look, stop. A name in use means that it was started before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
