"""Hosts that asked for a pause (Retry-After). The project sends them no requests until it is over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock
from tidegate.errors import FetchError, NotSent

# Shorter pauses are not stored: the download that got the answer waits by itself.
_SHORTEST = 5.0
# As in the queue's policies. A longer Retry-After is probably a mistake.
_LONGEST = 24 * 3600.0


class HostPauses:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def kept(self, project_id: str, url: str) -> Iterator[None]:
        """Wraps requests to a URL. NotSent while its host is pausing; stores a Retry-After that the host answers."""
        self.awake(project_id, [url])
        try:
            yield
        except NotSent:
            raise
        except FetchError as error:
            self.note(project_id, url, error.retry_after or 0.0)
            raise

    def awake(self, project_id: str, urls: Sequence[str]) -> list[str]:
        """The URLs whose hosts are not pausing. NotSent if all are, with the seconds until the first pause ends."""
        left = {host: self._seconds_left(project_id, host) for host in dict.fromkeys(map(_host, urls))}
        found = [url for url in urls if left[_host(url)] <= 0]
        if not found:
            host, seconds = min(left.items(), key=lambda one: one[1])
            error = NotSent(f"{host} asked for a pause, which ends in {math.ceil(seconds)} s", retry_after=seconds)
            error.put_off = True
            raise error
        return found

    def _seconds_left(self, project_id: str, host: str) -> float:
        item = self._table.get(keys.host_pause(project_id, host), consistent=True) or {}
        return float(item.get("until", 0)) - self._clock().timestamp()

    def note(self, project_id: str, url: str, seconds: float) -> None:
        """Stores the pause that the host asked for, unless it is short."""
        if seconds < _SHORTEST:
            return
        until = math.ceil(self._clock().timestamp() + min(seconds, _LONGEST))
        longer = "attribute_not_exists(#until) OR #until < :new"
        write = update(
            keys.host_pause(project_id, _host(url)),
            {"until": until, "expires_at": until},
            condition=longer,
            new=until,
        )
        self._table.try_write(write)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()
