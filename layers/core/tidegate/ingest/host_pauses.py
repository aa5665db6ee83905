"""Hosts that asked for a pause (Retry-After): none of the project's requests goes there until it is over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock
from tidegate.errors import FetchError, NotSent

# Shorter ones are waited for by whoever was asked.
_SHORTEST = 5.0
# As in the queue's policies: a longer one is taken for a mistake.
_LONGEST = 24 * 3600.0


class HostPauses:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def kept(self, project_id: str, url: str) -> Iterator[None]:
        """Around requests to a URL. NotSent while its host rests; a Retry-After met inside is kept."""
        self._require(project_id, url)
        try:
            yield
        except NotSent:
            raise
        except FetchError as error:
            if error.retry_after and error.retry_after >= _SHORTEST:
                self._note(project_id, url, error.retry_after)
            raise

    def _require(self, project_id: str, url: str) -> None:
        host = _host(url)
        item = self._table.get(keys.host_pause(project_id, host), consistent=True) or {}
        left = float(item.get("until", 0)) - self._clock().timestamp()
        if left > 0:
            error = NotSent(f"{host} asked for a pause; {math.ceil(left)} s of it are left", retry_after=left)
            error.put_off = True
            raise error

    def _note(self, project_id: str, url: str, seconds: float) -> None:
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
