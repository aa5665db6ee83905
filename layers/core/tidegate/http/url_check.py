"""Checks URLs when they are submitted, so that the caller hears of a bad one at once.

Only a hint: the address is checked again when it is connected to. So a URL whose name is not resolved in time passes.
Waiting for names is limited, because the caller chooses the names and the wait holds a function of the API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tidegate.errors import UrlNotAllowed
from tidegate.http.addresses import AddressGuard
from tidegate.http.names import is_address
from tidegate.http.urls import host_of, port_of, read_url

Name = tuple[str, int]

CHECK_SECONDS = 1.0
# After a wait of more than this share of the allowed time, no names of the project are looked up for a while.
_SLOW_SHARE = 0.5
SKIPPED_SECONDS = 30.0


class UrlCheck:
    def __init__(self, guard: AddressGuard, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._slow_until: dict[str, float] = {}

    def refusals(
        self, urls: Iterable[str], *, allow_private: bool, project_id: str, seconds: float = CHECK_SECONDS
    ) -> dict[str, UrlNotAllowed]:
        """The URLs that a fetch would refuse, and why. Takes at most `seconds`, however many URLs there are."""
        refused: dict[str, UrlNotAllowed] = {}
        named: dict[str, Name] = {}
        for url in urls:
            try:
                parsed = read_url(url)
                named[url] = host_of(parsed), port_of(parsed)
            except UrlNotAllowed as error:
                refused[url] = error
        addresses = {name for name in named.values() if is_address(name[0])}
        others = set(named.values()) - addresses

        def check(names: set[Name]) -> dict[str, UrlNotAllowed]:
            found = self._guard.refusals(names, allow_private=allow_private, timeout=seconds, project_id=project_id)
            return {url: found[name] for url, name in named.items() if name in found}

        refused |= check(addresses)
        # A request that is refused anyway waits for no name.
        if refused or not others or self._is_skipped(project_id):
            return refused
        began = self._clock()
        refused = check(others)
        if self._clock() - began > seconds * _SLOW_SHARE:
            self._skip(project_id)
        return refused

    def _is_skipped(self, project_id: str) -> bool:
        return self._slow_until.get(project_id, 0.0) > self._clock()

    def _skip(self, project_id: str) -> None:
        now = self._clock()
        # A new dict, so that other threads can read the old one meanwhile.
        still = {project: until for project, until in self._slow_until.items() if until > now}
        self._slow_until = still | {project_id: now + SKIPPED_SECONDS}
