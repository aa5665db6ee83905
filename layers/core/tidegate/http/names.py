"""Resolves host names in threads, because getaddrinfo has no time-out.

A slow name delays only those who ask for it: however many ask, each name is looked up once at a time, and each project
has a limited number of look-ups in progress, so that it cannot block those of others.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv6Address

from tidegate.errors import FetchTimeout, NotSent

Resolver = Callable[[str, int], Sequence[str]]

LOOKUPS_PER_PROJECT = 8
LOOKUPS = 256


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_address(host: str) -> bool:
    """Whether the host is an address in any spelling that the resolver knows, such as 127.1, 0x7f.1 or ::1.

    It is resolved without a name server, so at once.
    """
    try:
        if ":" in host:
            IPv6Address(host)
        else:
            # As getaddrinfo does, which takes other digits than 0 to 9 too.
            socket.inet_aton(host.encode("idna").decode())
    except (OSError, ValueError):
        return False
    return True


class _Lookup:
    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        self.done = threading.Event()
        self.found: Sequence[str] = ()
        self.failure: Exception | None = None

    def run(self, resolver: Resolver, host: str, port: int) -> None:
        try:
            self.found = resolver(host, port)
        except Exception as error:
            self.failure = error


class NameLookups:
    def __init__(self, resolver: Resolver = resolve) -> None:
        self._resolver = resolver
        self._running: dict[tuple[str, int], _Lookup] = {}
        self._by_project: Counter[str] = Counter()
        self._ended = threading.Condition()

    def find(self, host: str, port: int, timeout: float, project_id: str = "") -> Sequence[str]:
        """The addresses. FetchTimeout if this name is slow; NotSent if it had to wait for other slow names."""
        until = time.monotonic() + timeout
        lookup = self._join(host, port, project_id, until)
        if not lookup.done.wait(max(0.0, until - time.monotonic())):
            raise FetchTimeout(f"the host name {host} was not resolved within {timeout:g} s")
        if lookup.failure:
            raise lookup.failure
        return lookup.found

    def find_many(
        self, names: Iterable[tuple[str, int]], timeout: float, project_id: str
    ) -> dict[tuple[str, int], Sequence[str]]:
        """The addresses of those names, (host, port) pairs, that are resolved within one time-out for all of them."""
        until = time.monotonic() + timeout
        lookups: dict[tuple[str, int], _Lookup] = {}
        found: dict[tuple[str, int], Sequence[str]] = {}
        with suppress(NotSent):
            for name in names:
                lookups[name] = self._join(*name, project_id, until)
        for name, lookup in lookups.items():
            if lookup.done.wait(max(0.0, until - time.monotonic())) and not lookup.failure:
                found[name] = lookup.found
        return found

    def _join(self, host: str, port: int, project_id: str, until: float) -> _Lookup:
        if is_address(host):
            lookup = _Lookup(project_id)
            lookup.run(self._resolver, host, port)
            lookup.done.set()
            return lookup
        with self._ended:
            while True:
                running = self._running.get((host, port))
                if running:
                    return running
                if self._by_project[project_id] < LOOKUPS_PER_PROJECT and len(self._running) < LOOKUPS:
                    return self._start(host, port, project_id)
                if not self._ended.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise NotSent(
                        f"the host name {host} was not looked up yet: {self._slow_names(project_id)}", retry_after=5
                    )

    def _start(self, host: str, port: int, project_id: str) -> _Lookup:
        lookup = self._running[host, port] = _Lookup(project_id)
        self._by_project[project_id] += 1
        try:
            # A daemon thread, so that a look-up that hangs does not keep the process alive.
            threading.Thread(target=self._run, args=(host, port, lookup), name=f"resolve {host}", daemon=True).start()
        except BaseException:
            self._forget(host, port, project_id)
            raise
        return lookup

    def _run(self, host: str, port: int, lookup: _Lookup) -> None:
        try:
            lookup.run(self._resolver, host, port)
        finally:
            with self._ended:
                self._forget(host, port, lookup.project_id)
                lookup.done.set()
                self._ended.notify_all()

    def _forget(self, host: str, port: int, project_id: str) -> None:
        del self._running[host, port]
        self._by_project[project_id] -= 1
        if not self._by_project[project_id]:
            del self._by_project[project_id]

    def _slow_names(self, project_id: str) -> str:
        hosts = [host for (host, _), lookup in self._running.items() if lookup.project_id == project_id]
        if len(hosts) < LOOKUPS_PER_PROJECT:
            return f"{len(self._running)} other names are still being resolved"
        return f"this project's other names are still being resolved ({', '.join(hosts[:3])}, …)"
