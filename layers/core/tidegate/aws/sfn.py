"""Step Functions: start, describe and stop executions. A name that is in use was started before."""

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

    def latest(self, machine_arn: str, name: str) -> str:
        """The name of the execution that goes on where this one left off: a machine whose history grew too long
        ends with the name of its successor in its output."""
        while True:
            try:
                found = self._client.describe_execution(executionArn=execution_arn(machine_arn, name))
            except self._client.exceptions.ExecutionDoesNotExist:
                return name
            following = _successor(found.get("output"))
            # The successor is started before this one ends; only one that ended tells of it.
            if found["status"] != "SUCCEEDED" or following is None:
                return name
            name = following

    def stop(self, machine_arn: str, name: str, cause: str) -> None:
        try:
            self._client.stop_execution(executionArn=execution_arn(machine_arn, name), cause=cause[:200])
        except self._client.exceptions.ExecutionDoesNotExist:
            return


def _successor(output: str | None) -> str | None:
    told = json.loads(output) if output else None
    following = told.get("successor") if isinstance(told, dict) else None
    return str(following["name"]) if isinstance(following, dict) and "name" in following else None


def execution_arn(machine_arn: str, name: str) -> str:
    """An execution belongs to its machine, by whichever alias or version it was started."""
    before, _, machine = machine_arn.partition(":stateMachine:")
    return f"{before}:execution:{machine.partition(':')[0]}:{name}"
