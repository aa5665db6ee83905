"""Starts, checks and stops the state machine that runs a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, takewhile

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
        others = (self._status(request, name) for name in _further_names(request, "r", 1))
        return next(other or first for other in others if other in (None, "RUNNING"))

    def _status(self, request: Request, name: str) -> str | None:
        machine = self._machine(request)
        return self._machines.status(machine, self._machines.latest(machine, name))

    def stop(self, request: Request, why: str) -> None:
        """Stops all executions of the request. Busy if one of them could not be stopped; the others are tried too."""
        failed: Exception | None = None
        try:
            # The request's own comes first: it starts the others, and must not start more of them.
            for name in self._started(request):
                failed = self._try_stop(request, name, why) or failed
        except (ClientError, BotoCoreError) as error:
            failed = error
        if failed:
            raise Busy("the state machine of the request could not be stopped: try again in a few seconds") from failed

    def _try_stop(self, request: Request, name: str, why: str) -> Exception | None:
        machine = self._machine(request)
        try:
            self._machines.stop(machine, self._machines.latest(machine, name), why)
        except (ClientError, BotoCoreError) as error:
            return error
        return None

    def _started(self, request: Request) -> Iterator[str]:
        """The names of the first executions: the request's own, and those of a batch's further runners and indexers."""
        yield _name(request)
        machine = self._machine(request)
        if self._policies[request.type].machine != "batch":
            return
        for part, first in (("r", 1), ("i", 0)):
            names = _further_names(request, part, first)
            yield from takewhile(lambda name: self._machines.status(machine, name) is not None, names)

    def _machine(self, request: Request) -> str:
        return self._arns[self._policies[request.type].machine]


def _name(request: Request) -> str:
    return f"{request.request_id}-{request.attempt}"


def _further_names(request: Request, part: str, first: int) -> Iterator[str]:
    """The first executions of a batch's further runners ("r") or indexers ("i"), as `batches/steps.py` names them."""
    return (f"{_name(request)}-{part}{number}-1" for number in count(first))
