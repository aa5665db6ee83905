"""Follows records until they end: over the WebSocket, or by polling if that does not work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tidegate_client.client import Client
from tidegate_client.errors import RateLimited, ServerError, TidegateError, Unreachable, WaitTimeout
from tidegate_client.records import Change, Reader, Record, find, matches, own_id, reader_of
from tidegate_client.socket import Socket, SocketFailed

QUIET_SECONDS = 15.0
FIRST_POLL, LONGEST_POLL = 0.5, 5.0
# A watch lasts minutes or hours: an API that is unavailable for less than this does not end it.
OUTAGE_SECONDS = 60.0
POLLED_AT_ONCE = 50


class Watch:
    """Iterating yields each record as it is now, then after each change, until all have ended."""

    def __init__(
        self,
        client: Client,
        record_ids: Sequence[str],
        *,
        ws_url: str | None = None,
        use_socket: bool = True,
        timeout: float | None = None,
        known: Mapping[str, Record] | None = None,
        on_fallback: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._client = client
        self._ws_url = ws_url
        self._use_socket = use_socket
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._on_fallback = on_fallback
        self._known = known or {}
        self._readers: dict[str, Reader] = {}
        self._latest: dict[str, Record] = {}
        self._pending = list(dict.fromkeys(record_ids))

    def __iter__(self) -> Iterator[Change]:
        for record_id in list(self._pending):
            yield from self._changes(record_id, self._first_record(record_id))
        if self._use_socket and self._pending:
            try:
                yield from self._by_socket()
            except WaitTimeout:
                raise
            except TidegateError as error:
                self._on_fallback(str(error))
        yield from self._by_polling()

    def _first_record(self, record_id: str) -> Record:
        """Records that the caller has just submitted are not read again: there may be thousands."""
        reader = reader_of(record_id)
        if reader and record_id in self._known:
            self._readers[record_id] = reader
            return self._known[record_id]
        self._readers[record_id], record = find(self._client, record_id)
        return record

    def _by_socket(self) -> Iterator[Change]:
        with contextlib.closing(Socket(self._client, self._ws_url)) as socket:
            socket.watch(self._pending)
            while self._pending:
                message = socket.receive(self._until_deadline(QUIET_SECONDS))
                if message is None:
                    # A message may have been lost: read the records. The ping keeps the connection open.
                    socket.ping()
                    yield from self._poll_once()
                    continue
                data = message.get("data")
                if message.get("type") == "error":
                    raise SocketFailed(str(data or message))
                if isinstance(data, dict) and "status" in data:
                    yield from self._received(data)

    def _received(self, data: Record) -> Iterator[Change]:
        own = own_id(data)
        matching = [own] if own in self._pending else [one for one in self._pending if matches(data, one)]
        for record_id in matching:
            yield from self._changes(record_id, {**self._latest.get(record_id, {}), **data})

    def _by_polling(self) -> Iterator[Change]:
        pause, answered_at = FIRST_POLL, time.monotonic()
        while self._pending:
            time.sleep(self._until_deadline(pause))
            before = dict(self._latest)
            try:
                yield from self._poll_once()
            except (Unreachable, ServerError, RateLimited):
                if time.monotonic() - answered_at > OUTAGE_SECONDS:
                    raise
            else:
                answered_at = time.monotonic()
            pause = FIRST_POLL if self._latest != before else min(pause * 1.5, LONGEST_POLL)

    def _poll_once(self) -> Iterator[Change]:
        polled, rest = self._pending[:POLLED_AT_ONCE], self._pending[POLLED_AT_ONCE:]
        self._pending = rest + polled
        for record_id in polled:
            yield from self._changes(record_id, self._readers[record_id](self._client, record_id))

    def _changes(self, record_id: str, record: Record) -> Iterator[Change]:
        """Yields the record if it differs from the one before."""
        if self._latest.get(record_id) == record:
            return
        self._latest[record_id] = record
        change = Change(record_id, record)
        if change.ended and record_id in self._pending:
            self._pending.remove(record_id)
        yield change

    def _until_deadline(self, pause: float) -> float:
        """The pause, shortened to the time that is left. WaitTimeout if none is."""
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{self._unfinished()} had not ended after {self._timeout:g} s")
        return min(pause, left)

    def _unfinished(self) -> str:
        """The records that have not ended, with the status of each: at most three by name."""
        named = [f"{one} ({self._latest.get(one, {}).get('status', 'unknown')})" for one in self._pending[:3]]
        more = f" and {len(self._pending) - 3} more" if len(self._pending) > 3 else ""
        return ", ".join(named) + more


def watch(client: Client, *record_ids: str, timeout: float | None = None) -> Watch:
    """Yields each record as it is now, then after each change, until all have ended."""
    return Watch(client, record_ids, timeout=timeout)


def wait(client: Client, record_id: str, *, timeout: float | None = None) -> Change:
    """Waits until the record has ended and returns it."""
    return client.wait(record_id, timeout=timeout)
