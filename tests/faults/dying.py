"""A function that dies at its k-th AWS call, just before it or just after it took effect; or stalls there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from tests.faults.late import SHORT, Invocation, Nap, Stalled
from tests.support.moto_cloud import MotoCloud, load_function
from tidegate import app as composition
from tidegate.aws import clients

BEFORE, AFTER, THROTTLED, LATE = "before", "after", "throttled", "late"
# What a caller waits for is repeated by callers, not by AWS.
_ASKED = ("api", "submit", "authorizer")
_ANSWERING = (*_ASKED, "compensate")


class Died(BaseException):
    """Not an Exception, as a killed process is none: no handler of the product may catch it."""

    def __init__(self, where: str | None, seen_as: str = "Lambda.Unknown") -> None:
        super().__init__(where)
        self.seen_as = seen_as


@dataclass
class Calls:
    """The AWS calls that the product's functions made, and which of them goes wrong."""

    at: int | None = None
    mode: str = BEFORE
    made: list[str] = field(default_factory=list)
    happened: str | None = None
    nap: Nap = SHORT
    _dead: bool = False
    _counting: bool = True
    _current: Invocation | None = None
    _late: Invocation | None = None

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For what the test does with the product's own services."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def around(self, name: str, client: int, ours: Collection[int], call: Callable[[], Any]) -> Any:
        if self._late and self._late.holds(client):
            self._late.hold()
            return call()
        if not self._counting:
            return call()
        if self._dead:
            raise Died(name)
        self.made.append(name)
        if self.at and len(self.made) == self.at + self.nap.calls:
            self.wake()
        if len(self.made) != self.at:
            return call()
        self.happened = f"{self.mode} {name}"
        if self.mode == LATE:
            assert self._current
            self._late = self._current
            self._late.stall(ours)
            self._late.hold()
            return call()
        if self.mode == THROTTLED:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, name.split(".")[1])
        if self.mode == AFTER:
            call()
        self._dead = True
        raise Died(name)

    def function_ended(self) -> None:
        """The next invocation finds a new process: nothing that was remembered in memory is left."""
        if self._dead:
            self._dead = False
            composition.install(composition.App(clock=composition.app().clock))

    def run(self, invocation: Invocation) -> Any:
        """As `Died` tells it: no answer came. The process is left alone, and the next invocation has another."""
        before, self._current = self._current, invocation
        try:
            return invocation.result()
        except Stalled:
            load_function.cache_clear()
            composition.install(composition.App(clock=composition.app().clock))
            raise Died(self.happened, self.nap.seen_as) from None
        finally:
            self._current = before

    def wake(self) -> bool:
        """Lets a late function run to its end. Whether there was one."""
        return self._late is not None and self._late.resume()


def _shuffled(event: Any, order: random.Random) -> Any:
    if not isinstance(event, dict) or "Records" not in event:
        return event
    return event | {"Records": order.sample(event["Records"], len(event["Records"]))}


@contextmanager
def dying(
    cloud: MotoCloud,
    at: int | None = None,
    mode: str = BEFORE,
    repeat: random.Random | None = None,
    only: Collection[str] = (),
    nap: Nap = SHORT,
) -> Iterator[Calls]:
    """Counts the calls inside functions (`only` those named), one function at a time, and lets the `at`-th go wrong.

    With `repeat`, every message and every step of a machine comes twice, messages in another order the first time.
    """
    calls = Calls(at, mode, nap=nap)
    one_at_a_time = threading.RLock()
    make, make_client, invoke = BaseClient._make_api_call, clients.client, cloud.invoke  # type: ignore[attr-defined]
    ours: dict[int, Any] = {}

    def remembered(service: str, endpoint_url: str | None = None) -> Any:
        made = make_client(service, endpoint_url)
        ours[id(made)] = made
        return made

    def counted(client: Any, operation: str, arguments: Any) -> Any:
        if id(client) not in ours:
            return make(client, operation, arguments)
        name = f"{client.meta.service_model.service_name}.{operation}"
        return calls.around(name, id(client), ours, lambda: make(client, operation, arguments))

    def alone(name: str, event: Any) -> Any:
        # Whoever asked and got no answer asks again: what is late there is only a second request.
        exempt = (only and name not in only) or (mode == LATE and name in _ASKED)
        with one_at_a_time, calls.uncounted() if exempt else nullcontext():
            if mode == LATE and not exempt:
                return calls.run(Invocation(name, lambda: invoke(name, event), cloud.clock))
            try:
                if repeat is not None and name not in _ANSWERING:
                    invoke(name, _shuffled(event, repeat))
                return invoke(name, event)
            finally:
                calls.function_ended()

    composition.install(composition.App(clock=cloud.clock))
    with (
        patch.object(BaseClient, "_make_api_call", counted),
        patch.object(clients, "client", remembered),
        patch.object(cloud, "invoke", alone),
    ):
        yield calls
