"""Fault injection: lets one AWS call or invocation of the product's functions fail, in one of the ways in `modes`."""

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
from tests.faults.conditions import NORMAL, Conditions, SkewedClock, one_item_a_page, remove_expired
from tests.faults.late import SHORT, Delay, Invocation, Stalled
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
    is_write,
    modes_of,
)
from tests.faults.stale import Journal
from tests.faults.wire import Wire
from tests.support.moto.cloud import MotoCloud, load_function, new_client
from tidegate import app as composition
from tidegate.aws import clients

# Functions whose callers wait for the answer: the callers retry them, not AWS.
_SYNCHRONOUS = ("api", "submit", "authorizer")
_NOT_REPEATED = (*_SYNCHRONOUS, "compensate")
_FROZEN_SECONDS = 200
# A refusal ends after two attempts, or lasts for more attempts than the product makes within one call.
_SHORT_REFUSALS, _LONG_REFUSALS = 2, 12
_REFUSED_INVOCATIONS = 2


# Faults of the connection between botocore and AWS.
_TROUBLES: dict[str, Callable[[], wire.Trouble]] = {
    LOST: lambda: wire.answer_lost(1),
    UNANSWERED: wire.never_answered,
    S3_SILENT: wire.silent,
    S3_ERROR_BODY: lambda: wire.refused(200, b"InternalError"),
    S3_SLOW_DOWN: lambda: wire.refused(503, b"SlowDown"),
}


class Died(BaseException):
    """The function was killed. Not an Exception, because no handler of the product may catch it."""

    def __init__(self, where: str | None, seen_as: str = "Lambda.Unknown") -> None:
        super().__init__(where)
        self.seen_as = seen_as


class Request(NamedTuple):
    """A call of one of the product's clients."""

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
    """Records the AWS calls of the product's functions, and injects a fault at the `at`-th call or invocation."""

    at: int | None = None
    mode: str = BEFORE
    conditions: Conditions = NORMAL
    made: list[Made] = field(default_factory=list)
    invoked: list[str] = field(default_factory=list)
    injected: str | None = None
    delay: Delay = SHORT
    journal: Journal | None = None
    wire: Wire = field(default_factory=Wire)
    _dead: bool = False
    _counting: bool = True
    _current: Invocation | None = None
    _late: Invocation | None = None
    # The arguments of a write that is being refused, and how many refusals are left.
    _refused: tuple[Mapping[str, Any], int] | None = None
    _crowded: tuple[str, int] | None = None
    # Held by the thread that runs a function.
    one_at_a_time: Any = field(default_factory=threading.RLock)
    # Called after each write of the functions, with its name.
    after_write: Callable[[str], None] | None = None
    # The thread in which a caller reads, if it does. Threads of the functions go on meanwhile.
    _reader: int | None = None
    _reads_stale: bool = False

    @contextmanager
    def reads_as_caller(self, *, stale: bool) -> Iterator[None]:
        """This thread acts as a caller. Its calls are not counted, and no fault is injected. With `stale`, eventually
        consistent reads return items as they were before their last write."""
        self._reader, self._reads_stale = threading.get_ident(), stale
        try:
            yield
        finally:
            self._reader = None

    @property
    def reading(self) -> bool:
        return self._reader == threading.get_ident()

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Neither counts calls nor injects faults: for the test's own use of the product."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    @property
    def counting(self) -> bool:
        return self._counting and not self.reading

    def points(self, mode: str) -> list[int]:
        """The numbers of the calls or invocations at which this mode can be injected."""
        if mode in AT_INVOCATIONS:
            return list(range(1, len(self.invoked) + 1))
        return [number for number, made in enumerate(self.made, 1) if mode in made.modes]

    def around(self, request: Request, ours: Collection[int]) -> Any:
        if self.reading:
            return self._read(request)
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
        if self.at and number == self.at + self.delay.calls:
            self.resume()
        if self._refused and self._refused[0] == request.arguments:
            self._refuse(request, self._refused[1] - 1)
        if self.at is None or self.injected or number < self.at or self.mode not in modes:
            answer = self._in_conditions(request)
            if self.after_write and request.service == "dynamodb" and is_write(request.operation):
                self.after_write(f"{request.operation} of {self.invoked[-1] if self.invoked else 'the test'}")
            return answer
        self.injected = f"{self.mode} {request.name}"
        return self._inject(request, ours)

    def _read(self, request: Request) -> Any:
        eventual = request.service == "dynamodb" and is_eventual(request.operation, request.arguments)
        if not (eventual and self._reads_stale):
            return request.run()
        assert self.journal
        with self.journal.before_last_write():
            return request.run()

    def _in_conditions(self, request: Request) -> Any:
        if request.service != "dynamodb":
            return request.run()
        arguments = request.arguments
        if self.conditions.small_pages:
            arguments = one_item_a_page(request.operation, arguments)
        if self.conditions.stale and is_eventual(request.operation, arguments):
            assert self.journal
            with self.journal.before_last_second():
                return request.send(arguments)
        return request.send(arguments)

    def _inject(self, request: Request, ours: Collection[int]) -> Any:
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
            return _LONG_REFUSALS
        # botocore retries a throttled plain write itself, so an error that gets here is the last.
        return 1 if self.mode == HOT_ITEM and request.operation != "TransactWriteItems" else _SHORT_REFUSALS

    def invocation(self, name: str, cloud: MotoCloud) -> None:
        """Called before each invocation, which may be refused, or get a clock that jumped and closed sockets."""
        if not self._counting:
            return
        self.invoked.append(name)
        if self.conditions.expired:
            remove_expired(cloud)
        if self._crowded and self._crowded[0] == name:
            self._refuse_invocation(name, self._crowded[1] - 1)
        if self.mode not in AT_INVOCATIONS or self.injected or len(self.invoked) != self.at:
            return
        self.injected = f"{self.mode} {name}"
        if self.mode == CROWDED:
            self._refuse_invocation(name, _REFUSED_INVOCATIONS)
        if self.mode == FROZEN:
            cloud.clock.advance(_FROZEN_SECONDS)
            cloud.frozen_seconds += _FROZEN_SECONDS
            self.wire.sockets_die()

    def _refuse_invocation(self, name: str, left: int) -> None:
        self._crowded = (name, left) if left > 0 else None
        if left > 0:
            raise Died(self.injected, "Lambda.TooManyRequestsException")

    def function_ended(self) -> None:
        """After a kill, the next invocation gets a new process with nothing cached in memory."""
        if self._dead:
            self._dead = False
            composition.install(composition.App(clock=composition.app().clock))

    def run(self, invocation: Invocation) -> Any:
        """Runs a function that may stall. Then its invoker gets `Died`, and the next invocation gets a new process."""
        before, self._current = self._current, invocation
        try:
            return invocation.result()
        except Stalled:
            load_function.cache_clear()
            composition.install(composition.App(clock=composition.app().clock))
            raise Died(self.injected, self.delay.seen_as) from None
        finally:
            self._current = before

    def resume(self) -> bool:
        """Lets a stalled function run to its end. Returns whether there was one."""
        return self._late is not None and self._late.resume()


def _shuffled(event: Any, order: random.Random) -> Any:
    if not isinstance(event, dict) or "Records" not in event:
        return event
    return event | {"Records": order.sample(event["Records"], len(event["Records"]))}


@contextmanager
def inject_faults(
    cloud: MotoCloud,
    at: int | None = None,
    mode: str = BEFORE,
    repeat: random.Random | None = None,
    only: Collection[str] = (),
    delay: Delay = SHORT,
    conditions: Conditions = NORMAL,
) -> Iterator[Calls]:
    """Runs one function at a time, counts the calls of functions (`only` of those named), and injects a fault at one.

    With `repeat`, every message and every task of a state machine is delivered twice, the first time in another order.
    """
    calls = Calls(at, mode, conditions, delay=delay)
    one_at_a_time = calls.one_at_a_time
    make, invoke = BaseClient._make_api_call, cloud.invoke  # type: ignore[attr-defined]
    # A new process has new clients; a stalled function keeps its own.
    make_client = new_client
    ours: dict[int, Any] = {}
    skewed = SkewedClock(cloud.clock)

    def registered(service: str, endpoint_url: str | None = None) -> Any:
        made = make_client(service, endpoint_url)
        ours[id(made)] = made
        return made

    def counted(client: Any, operation: str, arguments: Any) -> Any:
        if id(client) not in ours:
            return make(client, operation, arguments)
        request = Request(client, operation, arguments, lambda sent: make(client, operation, sent))
        return calls.around(request, ours)

    def invoke_alone(name: str, event: Any) -> Any:
        if calls.reading:
            return invoke(name, event)
        # Callers retry synchronous functions, so a stalled one would only be a second request.
        exempt = (only and name not in only) or (mode == LATE and name in _SYNCHRONOUS)
        with one_at_a_time, calls.without_faults() if exempt else nullcontext():
            before, skewed.running = skewed.running, name
            try:
                calls.invocation(name, cloud)
                if mode == LATE and not exempt:
                    return calls.run(Invocation(name, lambda: invoke(name, event), cloud.clock))
                try:
                    if repeat is not None and name not in _NOT_REPEATED:
                        invoke(name, _shuffled(event, repeat))
                    return invoke(name, event)
                finally:
                    calls.function_ended()
            finally:
                skewed.running = before

    composition.install(composition.App(clock=skewed if conditions.skew else cloud.clock))
    with ExitStack() as patches:
        calls.journal = Journal(cloud.clock, lambda: calls.counting)
        patches.enter_context(calls.journal.kept())
        if mode in HARSH:
            patches.enter_context(calls.wire.patched())
        if conditions.blocked or mode in (CROWDED, *CONFLICTS):
            patches.enter_context(patch.object(cloud, "_settle", _leave_failed(cloud)))
        patches.enter_context(patch.object(BaseClient, "_make_api_call", counted))
        patches.enter_context(patch.object(clients, "client", registered))
        patches.enter_context(patch.object(cloud, "invoke", invoke_alone))
        # `one_at_a_time` serves requests, too. With a second lock, a reader within a function waited for a request that
        # waited for this function.
        patches.enter_context(patch.object(cloud, "serving", nullcontext))
        yield calls


def _leave_failed(cloud: MotoCloud) -> Callable[[str, list[Any], set[str]], None]:
    """As in SQS, failed messages stay invisible until their visibility time-out ends."""
    settle = cloud._settle

    def left(queue: str, batch: list[Any], failed: set[str]) -> None:
        settle(queue, [message for message in batch if message["MessageId"] not in failed], set())

    return left
