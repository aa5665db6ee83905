"""Step Functions: start, describe and stop executions."""

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
        """Starts an execution and returns its ARN. A name that was started before is not started again."""
        try:
            started = self._client.start_execution(stateMachineArn=machine_arn, name=name, input=json.dumps(data))
        except self._client.exceptions.ExecutionAlreadyExists:
            return execution_arn(machine_arn, name)
        return started["executionArn"]

    def status(self, machine_arn: str, name: str) -> str | None:
        """RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED; None if there is no such execution."""
        try:
            found = self._client.describe_execution(executionArn=execution_arn(machine_arn, name))
        except self._client.exceptions.ExecutionDoesNotExist:
            return None
        return found["status"]

    def latest(self, machine_arn: str, name: str) -> str:
        """The name of the last execution in a chain that begins with `name`.

        An execution whose history gets too long starts a successor and ends with its name in the output.
        """
        while True:
            try:
                found = self._client.describe_execution(executionArn=execution_arn(machine_arn, name))
            except self._client.exceptions.ExecutionDoesNotExist:
                return name
            following = _successor(found.get("output"))
            # Only an execution that has ended names its successor.
            if found["status"] != "SUCCEEDED" or following is None:
                return name
            name = following

    def stop(self, machine_arn: str, name: str, cause: str) -> None:
        """Stops an execution. Does nothing if there is no such execution."""
        try:
            self._client.stop_execution(executionArn=execution_arn(machine_arn, name), cause=cause[:200])
        except self._client.exceptions.ExecutionDoesNotExist:
            return


def _successor(output: str | None) -> str | None:
    result = json.loads(output) if output else None
    following = result.get("successor") if isinstance(result, dict) else None
    return str(following["name"]) if isinstance(following, dict) and "name" in following else None


def execution_arn(machine_arn: str, name: str) -> str:
    """The ARN of an execution. It has no alias or version, even if the machine was started by one."""
    before, _, machine = machine_arn.partition(":stateMachine:")
    return f"{before}:execution:{machine.partition(':')[0]}:{name}"
