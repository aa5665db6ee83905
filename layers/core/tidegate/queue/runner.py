"""The state machine that runs a request."""

from __future__ import annotations

from collections.abc import Mapping

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.sfn import Machines
from tidegate.errors import Busy
from tidegate.queue.model import Request
from tidegate.queue.policies import Policy


class RequestRunner:
    """Starts, asks after and stops the machine of a request's type; an execution is named by request and attempt.

    A long one goes on in another execution, which is then the one that is asked after and stopped."""

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
        machine = self._machine(request)
        return self._machines.status(machine, self._machines.latest(machine, _name(request)))

    def stop(self, request: Request, why: str) -> None:
        machine = self._machine(request)
        try:
            self._machines.stop(machine, self._machines.latest(machine, _name(request)), why)
        except (ClientError, BotoCoreError) as error:
            raise Busy("the machine could not be stopped") from error

    def _machine(self, request: Request) -> str:
        return self._arns[self._policies[request.type].machine]


def _name(request: Request) -> str:
    return f"{request.request_id}-{request.attempt}"
