"""Limits what all functions together send to one address: calls per second and parallel connections.

Counted by address, because anyone can make new host names. A process that sends little has a free allowance and asks
nobody. One that sends more leases a block from a counter that all processes share: one counter for each second (calls)
or each ten seconds (connections). Counters are never reset, since the next window has a new one. So what a dead
process held, and the unused rest of a block, is free again in the next window. Together, processes stay within the
limit plus the free allowance of each.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

from aws_lambda_powertools import Logger

from tidegate.errors import NotSent

logger = Logger(service="tidegate", child=True)

# (address, "calls" or "connections", window, amount) → the counter's new value.
Count = Callable[[str, str, int, int], int]

CALLS, CONNECTIONS = "calls", "connections"
_FREE_CALLS = 5
_FREE_CONNECTIONS = 16
_CONNECTION_WINDOW = 10
_MOST_ADDRESSES = 1024


@dataclass(slots=True)
class _Use:
    """What this process uses of one address. The lock is held while the shared counter is asked."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    second: int = 0
    calls: int = 0
    calls_before: int = 0
    calls_allowed: int = 0
    calls_over: bool = False
    window: int = 0
    connections: int = 0
    leased: int = 0
    asked_at: float = 0.0


class HostLimits:
    """At most `calls` per second and `connections` to one address, over all processes that share `count`; 0: no limit.

    An address is what `counted_address` returns, or a project and a host with a space between. Waiting ends after
    `patience` seconds.
    """

    def __init__(
        self,
        count: Count | None = None,
        calls: int = 0,
        connections: int = 0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._count = count
        self._calls = calls if count else 0
        self._connections = connections if count else 0
        self._free_calls = _free(self._calls, _FREE_CALLS)
        self._free_connections = _free(self._connections, _FREE_CONNECTIONS)
        self._clock = clock
        self._sleep = sleep
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()

    def call(self, address: str, patience: float) -> float:
        """Waits until one more call may be made. Returns the seconds waited. NotSent if that takes too long."""
        if not self._calls:
            return 0.0
        use, began = self._use(address), time.monotonic()
        while (wait := self._take_call(address, use)) > 0:
            waited = time.monotonic() - began
            if waited + wait > patience:
                raise NotSent(
                    f"{_named(address)} already gets {self._calls} calls per second, its limit", retry_after=1
                )
            self._sleep(wait)
        return time.monotonic() - began

    def connect(self, address: str, patience: float) -> None:
        """Counts a connection before it is opened. NotSent if there is no room; otherwise call `disconnect` later."""
        if not self._connections:
            return
        use, began = self._use(address), time.monotonic()
        while not self._take_connection(address, use):
            if time.monotonic() - began + 0.1 > patience:
                raise NotSent(
                    f"{_named(address)} already has {self._connections} connections, its limit", retry_after=2
                )
            self._sleep(0.1)

    def disconnect(self, address: str) -> None:
        if self._connections:
            use = self._use(address)
            with use.lock:
                use.connections = max(0, use.connections - 1)

    # --- calls

    def _take_call(self, address: str, use: _Use) -> float:
        """0 if the call may be made now; otherwise the seconds to wait before the next try."""
        with use.lock:
            now = self._clock()
            if int(now) != use.second:
                follows = int(now) == use.second + 1
                use.calls_before, use.second, use.calls = (use.calls if follows else 0), int(now), 0
                use.calls_allowed, use.calls_over = self._free_calls, False
            if use.leased:
                self._renew(address, use, now)
            if use.calls >= use.calls_allowed and not use.calls_over:
                self._lease_calls(address, use)
            if use.calls >= use.calls_allowed:
                # A random part, so that not all callers come at once when the next second begins.
                return use.second + 1 - now + random.uniform(0.001, 0.05)  # noqa: S311
            use.calls += 1
            return 0.0

    def _lease_calls(self, address: str, use: _Use) -> None:
        # As many as the last second needed, but at most a tenth of the limit, so that other processes get some too.
        block = min(max(use.calls_before - use.calls, self._free_calls * 2, 10), max(1, self._calls // 10))
        # The free allowance is counted as well once a process leases more.
        free = use.calls if use.calls_allowed == self._free_calls else 0
        granted = self._lease(address, CALLS, use.second, block, free, self._calls)
        use.calls_allowed += granted
        use.calls_over = granted < block

    # --- connections

    def _take_connection(self, address: str, use: _Use) -> bool:
        with use.lock:
            now = self._clock()
            if use.leased:
                self._renew(address, use, now)
            if use.connections >= self._free_connections + use.leased and now - use.asked_at >= 1:
                self._lease_connections(address, use, now)
            if use.connections >= self._free_connections + use.leased:
                return False
            use.connections += 1
            return True

    def _lease_connections(self, address: str, use: _Use, now: float) -> None:
        use.window = int(now) // _CONNECTION_WINDOW
        block = min(max(8, use.connections // 2), max(1, self._connections // 10))
        free = 0 if use.leased else use.connections
        granted = self._lease(address, CONNECTIONS, use.window, block, free, self._connections)
        if granted:
            # In the next window too, because these connections will still be open then.
            self._lease(address, CONNECTIONS, use.window + 1, granted, free, self._connections)
        use.leased += granted
        if granted < block:
            use.asked_at = now

    def _renew(self, address: str, use: _Use, now: float) -> None:
        """Counts the open connections in the next window; after a pause of a whole window, in the present one too."""
        window = int(now) // _CONNECTION_WINDOW
        if window == use.window:
            return
        use.leased = max(0, use.connections - self._free_connections)
        missed = window > use.window + 1
        use.window = window
        if use.leased:
            for each in (window, window + 1) if missed else (window + 1,):
                self._lease(address, CONNECTIONS, each, use.connections, 0, self._connections)

    # --- both

    def _lease(self, address: str, kind: str, window: int, block: int, free: int, limit: int) -> int:
        assert self._count
        try:
            others = self._count(address, kind, window, block + free) - block
        except Exception:
            # Rather too few calls than too many: until the next window this process has its free allowance only.
            logger.exception("the shared counter of an address could not be read", address=address, kind=kind)
            return 0
        return max(0, min(block, limit - others))

    def _use(self, address: str) -> _Use:
        with self._lock:
            if len(self._uses) >= _MOST_ADDRESSES and address not in self._uses:
                self._uses = {name: use for name, use in self._uses.items() if use.connections or use.lock.locked()}
            return self._uses.setdefault(address, _Use())


def _free(limit: int, most: int) -> int:
    return max(1, min(most, limit // 100))


def _named(address: str) -> str:
    """The address without the project that counts its calls, for error texts: `p-1 host` is `host`."""
    return address.rpartition(" ")[2]


def counted_address(address: str) -> str:
    """The address under which calls are counted: IPv6 addresses by their /64, since one host can have all of it."""
    parsed = ip_address(address.split("%", 1)[0])
    return address if parsed.version == 4 else str(ip_address(int(parsed) >> 64 << 64))
