"""A function whose k-th AWS call goes wrong, or whose k-th invocation does: see `modes` for the ways."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from tests.faults import refusals, wire
from tests.faults.late import SHORT, Invocation, Nap, Stalled
from tests.faults.modes import (
    AFTER,
    AT_INVOCATIONS,
    BEFORE,
    CONFLICTS,
    CROWDED,
    FROZEN,
    HARSH,
    HOT_ITEM,
    LATE,
    LONG_CONFLICT,
    LOST,
    PARTIAL,
    S3_ERROR_BODY,
    S3_SILENT,
    S3_SLOW_DOWN,
    STALE,
    STALE_SECOND,
    THROTTLED,
    UNANSWERED,
    is_eventual,
    modes_of,
)
from tests.faults.stale import Journal
from tests.faults.weather import CALM, SkewedClock, Weather, one_item_a_page, remove_expired
from tests.faults.wire import Wire
from tests.support.moto.cloud import MotoCloud, load_function, own_client
from tidegate import app as composition
from tidegate.aws import clients

# Functions whose callers wait for the answer are invoked again by the callers, not by AWS.
_ASKED = ("api", "submit", "authorizer")
_ANSWERING = (*_ASKED, "compensate")
_FROZEN_SECONDS = 200
# A refusal passes after two attempts, or lasts longer than the product tries within one call.
_PASSES, _LASTS = 2, 12
_REFUSED_INVOCATIONS = 2


# What happens to the request between botocore and AWS.
_TROUBLES: dict[str, Callable[[], wire.Trouble]] = {
    LOST: lambda: wire.answer_lost(1),
    UNANSWERED: wire.never_answered,
    S3_SILENT: wire.silent,
    S3_ERROR_BODY: lambda: wire.refused(200, b"InternalError"),
    S3_SLOW_DOWN: lambda: wire.refused(503, b"SlowDown"),
}


class Died(BaseException):
    """Not an Exception, as a killed process is none: no handler of the product may catch it."""

    def __init__(self, where: str | None, seen_as: str = "Lambda.Unknown") -> None:
        super().__init__(where)
        self.seen_as = seen_as


class Request(NamedTuple):
    """One call of a client of the product's."""

    client: Any
    operation: str
    arguments: Mapping[str, Any]
    send: Callable[[Mapping[str, Any]], Any]

    @property
    def service(self) -> str:
        return str(self.client.meta.service_model.service_name)

    @property
    def name(self) -> str:
        return f"{self.service}.{self.operation}"

    def run(self) -> Any:
        return self.send(self.arguments)

    def error(self, code: str) -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": "slow down"}}, self.operation)


class Made(NamedTuple):
    name: str
    modes: frozenset[str]


@dataclass
class Calls:
    """The AWS calls that the product's functions made, and which of them goes wrong."""

    at: int | None = None
    mode: str = BEFORE
    weather: Weather = CALM
    made: list[Made] = field(default_factory=list)
    invoked: list[str] = field(default_factory=list)
    happened: str | None = None
    nap: Nap = SHORT
    journal: Journal | None = None
    wire: Wire = field(default_factory=Wire)
    _dead: bool = False
    _counting: bool = True
    _current: Invocation | None = None
    _late: Invocation | None = None
    # A write that is refused some times more, and by what.
    _refused: tuple[Mapping[str, Any], int] | None = None
    _crowded: tuple[str, int] | None = None

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For what the test does with the product's own services."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    @property
    def counting(self) -> bool:
        return self._counting

    def points(self, mode: str) -> list[int]:
        """Where this mode can strike."""
        if mode in AT_INVOCATIONS:
            return list(range(1, len(self.invoked) + 1))
        return [number for number, made in enumerate(self.made, 1) if mode in made.modes]

    def around(self, request: Request, ours: Collection[int]) -> Any:
        if self._late and self._late.holds(id(request.client)):
            self._late.hold()
            return request.run()
        if not self._counting:
            return request.run()
        if self._dead:
            raise Died(request.name)
        modes = modes_of(request.service, request.operation, request.arguments)
        self.made.append(Made(request.name, modes))
        number = len(self.made)
        if self.at and number == self.at + self.nap.calls:
            self.wake()
        if self._refused and self._refused[0] == request.arguments:
            self._refuse(request, self._refused[1] - 1)
        if self.at is None or self.happened or number < self.at or self.mode not in modes:
            return self._in_weather(request)
        self.happened = f"{self.mode} {request.name}"
        return self._strike(request, ours)

    def _in_weather(self, request: Request) -> Any:
        if request.service != "dynamodb":
            return request.run()
        arguments = request.arguments
        if self.weather.small_pages:
            arguments = one_item_a_page(request.operation, arguments)
        if self.weather.stale and is_eventual(request.operation, arguments):
            assert self.journal
            with self.journal.before_last_second():
                return request.send(arguments)
        return request.send(arguments)

    def _strike(self, request: Request, ours: Collection[int]) -> Any:
        assert self.at
        if self.mode == LATE:
            assert self._current
            self._late = self._current
            self._late.stall(ours)
            self._late.hold()
            return request.run()
        if self.mode == THROTTLED:
            raise request.error("ThrottlingException")
        if self.mode in (STALE, STALE_SECOND):
            assert self.journal
            with self.journal.before_last_write() if self.mode == STALE else self.journal.before_last_second():
                return request.run()
        if self.mode in _TROUBLES:
            with self.wire.meets(_TROUBLES[self.mode]()):
                return request.run()
        if self.mode == PARTIAL:
            return refusals.partly(request.operation, request.arguments, request.send)
        if self.mode in CONFLICTS:
            self._refuse(request, self._refusals(request))
        if self.mode == AFTER:
            request.run()
        self._dead = True
        raise Died(request.name)

    def _refuse(self, request: Request, left: int) -> None:
        self._refused = (request.arguments, left) if left > 0 else None
        if left > 0:
            hot = self.mode == HOT_ITEM
            raise refusals.conflict(request.client, request.operation, request.arguments, self.at or 0, throttled=hot)

    def _refusals(self, request: Request) -> int:
        if self.mode == LONG_CONFLICT:
            return _LASTS
        # A throttle of a plain write has outlasted botocore's own attempts when it comes here.
        return 1 if self.mode == HOT_ITEM and request.operation != "TransactWriteItems" else _PASSES

    def invocation(self, name: str, cloud: MotoCloud) -> None:
        """A function is about to be invoked: it may be refused, or its clock has jumped and its sockets are closed."""
        if not self._counting:
            return
        self.invoked.append(name)
        if self.weather.expired:
            remove_expired(cloud)
        if self._crowded and self._crowded[0] == name:
            self._refuse_invocation(name, self._crowded[1] - 1)
        if self.mode not in AT_INVOCATIONS or self.happened or len(self.invoked) != self.at:
            return
        self.happened = f"{self.mode} {name}"
        if self.mode == CROWDED:
            self._refuse_invocation(name, _REFUSED_INVOCATIONS)
        if self.mode == FROZEN:
            cloud.clock.advance(_FROZEN_SECONDS)
            cloud.frozen_seconds += _FROZEN_SECONDS
            self.wire.sockets_die()

    def _refuse_invocation(self, name: str, left: int) -> None:
        self._crowded = (name, left) if left > 0 else None
        if left > 0:
            raise Died(self.happened, "Lambda.TooManyRequestsException")

    def function_ended(self) -> None:
        """The next invocation finds a new process: nothing that was remembered in memory is left."""
        if self._dead:
            self._dead = False
            composition.install(composition.App(clock=composition.app().clock))

    def run(self, invocation: Invocation) -> Any:
        """The invoker gets no answer, as after `Died`. The process goes on, and the next invocation has another one."""
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
        """Lets a late function run to its end. Returns whether there was one."""
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
    weather: Weather = CALM,
) -> Iterator[Calls]:
    """Counts the calls inside functions (`only` those named), one function at a time, and lets the `at`-th go wrong.

    With `repeat`, every message and every step of a machine comes twice, messages in another order the first time.
    """
    calls = Calls(at, mode, weather, nap=nap)
    one_at_a_time = threading.RLock()
    make, invoke = BaseClient._make_api_call, cloud.invoke  # type: ignore[attr-defined]
    # A new process has new clients; a function that is late goes on with its own.
    make_client = own_client
    ours: dict[int, Any] = {}
    skewed = SkewedClock(cloud.clock)

    def remembered(service: str, endpoint_url: str | None = None) -> Any:
        made = make_client(service, endpoint_url)
        ours[id(made)] = made
        return made

    def counted(client: Any, operation: str, arguments: Any) -> Any:
        if id(client) not in ours:
            return make(client, operation, arguments)
        request = Request(client, operation, arguments, lambda sent: make(client, operation, sent))
        return calls.around(request, ours)

    def alone(name: str, event: Any) -> Any:
        # A caller without an answer asks again, so that a late function is only a second request.
        exempt = (only and name not in only) or (mode == LATE and name in _ASKED)
        with one_at_a_time, calls.uncounted() if exempt else nullcontext():
            before, skewed.running = skewed.running, name
            try:
                calls.invocation(name, cloud)
                if mode == LATE and not exempt:
                    return calls.run(Invocation(name, lambda: invoke(name, event), cloud.clock))
                try:
                    if repeat is not None and name not in _ANSWERING:
                        invoke(name, _shuffled(event, repeat))
                    return invoke(name, event)
                finally:
                    calls.function_ended()
            finally:
                skewed.running = before

    composition.install(composition.App(clock=skewed if weather.skew else cloud.clock))
    with ExitStack() as patches:
        if weather.stale or mode in (STALE, STALE_SECOND):
            calls.journal = Journal(cloud.clock, lambda: calls.counting)
            patches.enter_context(calls.journal.kept())
        if mode in HARSH:
            patches.enter_context(calls.wire.patched())
        if weather.blocked or mode in (CROWDED, *CONFLICTS):
            patches.enter_context(patch.object(cloud, "_settle", _leave_failed(cloud)))
        patches.enter_context(patch.object(BaseClient, "_make_api_call", counted))
        patches.enter_context(patch.object(clients, "client", remembered))
        patches.enter_context(patch.object(cloud, "invoke", alone))
        yield calls


def _leave_failed(cloud: MotoCloud) -> Callable[[str, list[Any], set[str]], None]:
    """Failed messages stay invisible until their visibility time-out ends, as in SQS."""
    settle = cloud._settle

    def left(queue: str, batch: list[Any], failed: set[str]) -> None:
        settle(queue, [message for message in batch if message["MessageId"] not in failed], set())

    return left
