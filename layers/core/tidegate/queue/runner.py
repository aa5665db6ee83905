"""Starts, checks and stops the state machine that runs a request."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.sfn import Machines
from tidegate.errors import Busy
from tidegate.queue.model import Request
from tidegate.queue.policies import Policy


class RequestRunner:
    """An execution is named by request and attempt. A long one continues in further executions: the latest counts."""

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
            raise Busy("the state machine of the request could not be started: try again in a few seconds") from error

    def status(self, request: Request) -> str | None:
        """Returns RUNNING while any runner of the request runs, else how its first execution ended (None: no start)."""
        first = self._status(request, _name(request))
        if first in (None, "RUNNING"):
            return first
        # The first runner of a batch may end long before the others, which are numbered without gaps.
        others = (self._status(request, _runner_name(request, number)) for number in count(1))
        return next(other or first for other in others if other in (None, "RUNNING"))

    def _status(self, request: Request, name: str) -> str | None:
        machine = self._machine(request)
        return self._machines.status(machine, self._machines.latest(machine, name))

    def stop(self, request: Request, why: str) -> None:
        machine = self._machine(request)
        try:
            self._machines.stop(machine, self._machines.latest(machine, _name(request)), why)
        except (ClientError, BotoCoreError) as error:
            raise Busy("the state machine of the request could not be stopped: try again in a few seconds") from error

    def _machine(self, request: Request) -> str:
        return self._arns[self._policies[request.type].machine]


def _name(request: Request) -> str:
    return f"{request.request_id}-{request.attempt}"


def _runner_name(request: Request, number: int) -> str:
    """The first execution of a further runner, as `batches/steps.py` names it."""
    return f"{_name(request)}-r{number}-1"
