"""A function that dies at its k-th AWS call: just before it, or just after it took effect."""

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

from tests.support.moto_cloud import MotoCloud
from tidegate import bootstrap
from tidegate.adapters import clients

BEFORE, AFTER, THROTTLED = "before", "after", "throttled"
# What a caller waits for is repeated by callers, not by AWS.
_ANSWERING = ("api", "submit", "authorizer", "compensate")


class Died(BaseException):
    """Not an Exception, as a killed process is none: no handler of the product may catch it."""


@dataclass
class Calls:
    """The AWS calls that the product's functions made, and which of them goes wrong."""

    at: int | None = None
    mode: str = BEFORE
    made: list[str] = field(default_factory=list)
    happened: str | None = None
    _dead: bool = False
    _counting: bool = True

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For what the test does with the product's own services."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        if not self._counting:
            return call()
        if self._dead:
            raise Died(name)
        self.made.append(name)
        if len(self.made) != self.at:
            return call()
        self.happened = f"{self.mode} {name}"
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
            bootstrap.install(bootstrap.App(clock=bootstrap.app().clock))


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
) -> Iterator[Calls]:
    """Counts the calls inside functions (`only` those named), one function at a time, and lets the `at`-th go wrong.

    With `repeat`, every message and every step of a machine comes twice, messages in another order the first time.
    """
    calls = Calls(at, mode)
    one_at_a_time = threading.RLock()
    make, make_client, invoke = BaseClient._make_api_call, clients.client, cloud.invoke  # type: ignore[attr-defined]
    ours: set[int] = set()

    def remembered(service: str, endpoint_url: str | None = None) -> Any:
        made = make_client(service, endpoint_url)
        ours.add(id(made))
        return made

    def counted(client: Any, operation: str, arguments: Any) -> Any:
        if id(client) not in ours:
            return make(client, operation, arguments)
        name = f"{client.meta.service_model.service_name}.{operation}"
        return calls.around(name, lambda: make(client, operation, arguments))

    def alone(name: str, event: Any) -> Any:
        with one_at_a_time, calls.uncounted() if only and name not in only else nullcontext():
            try:
                if repeat is not None and name not in _ANSWERING:
                    invoke(name, _shuffled(event, repeat))
                return invoke(name, event)
            finally:
                calls.function_ended()

    bootstrap.install(bootstrap.App(clock=cloud.clock))
    with (
        patch.object(BaseClient, "_make_api_call", counted),
        patch.object(clients, "client", remembered),
        patch.object(cloud, "invoke", alone),
    ):
        yield calls
