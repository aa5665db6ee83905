"""Watches records until they end: over the WebSocket, or by polling if the WebSocket cannot be used."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from tidegate_client.client import Client
from tidegate_client.errors import (
    ConfigError,
    RateLimited,
    ServerError,
    TidegateError,
    Unreachable,
    WaitTimeout,
    without_queries,
)
from tidegate_client.http import require_encrypted
from tidegate_client.records import Change, Reader, Record, find, matches, own_id, reader_of

# --- socket
# The API's WebSocket: subscribe to records and receive their changes.

IDS_A_MESSAGE = 100
# API Gateway closes the connection with code 1009 if a frame is larger.
LARGEST_FRAME = 32 * 1024
TOO_BIG = 1009
BEAT = '{"action":"beat"}'


class SocketFailed(TidegateError):
    """The WebSocket cannot be used, or was closed. The caller can poll instead."""


class MessageTooBig(SocketFailed):
    """The WebSocket was closed with code 1009, because a message was too large.

    Callers should poll. A new WebSocket would be closed for the same reason."""


class NoSocketLibrary(SocketFailed):
    """The package websocket-client is not installed."""


def _library() -> Any:
    """Imports websocket-client. Raises NoSocketLibrary if it is missing, as in a Lambda layer."""
    try:
        import websocket
    except ImportError as error:
        raise NoSocketLibrary("websocket-client is not installed") from error
    return websocket


class Socket:
    """A WebSocket connection to the API."""

    def __init__(
        self,
        client: Client,
        ws_url: str | None,
        *,
        timeout: float = 10.0,
        proxy: str | None = None,
        host_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Connects with a new ticket. `host_facts`: facts about an agent's host, sent with the connection request."""
        self._library = _library()
        self._broken = (OSError, self._library.WebSocketException)
        ticket = client.operations.ticket()
        address = ws_url or ticket.get("ws_url")
        if not address:
            raise SocketFailed("the API gives no WebSocket address; set TIDEGATE_WS_URL to the stack's WebSocket URL")
        try:
            require_encrypted(address)
        except ConfigError as error:
            raise SocketFailed(str(error)) from error
        query = urlencode({**(host_facts or {}), "ticket": ticket["ticket"]})
        try:
            self._connection: Any = self._library.create_connection(
                f"{address}?{query}", timeout=timeout, **_proxy_options(proxy)
            )
        except self._broken as error:
            raise SocketFailed(f"the WebSocket at {address} cannot be opened: {without_queries(error)}") from None

    def watch(self, record_ids: Sequence[str]) -> None:
        """Subscribes to the changes of records. If a record has already ended, its state is sent at once."""
        for ids in split_by_frame_size(record_ids):
            self._send({"action": "watch", "task_ids": ids})

    def ping(self) -> None:
        """Sends a ping as a message. Ping frames would not keep API Gateway from closing an idle connection."""
        self._send({"action": "ping"})

    def beat(self) -> None:
        """Sends an agent's heartbeat, which the API does not answer."""
        self._send_text(BEAT)

    def receive(self, wait: float) -> dict[str, Any] | None:
        """Returns the next message, or None if none came within `wait` seconds."""
        try:
            self._connection.settimeout(wait)
            opcode, data = self._connection.recv_data()
        except self._library.WebSocketTimeoutException:
            return None
        except self._broken as error:
            raise SocketFailed(str(error)) from error
        if opcode == self._library.ABNF.OPCODE_CLOSE:
            code = int.from_bytes(data[:2], "big")
            raise (MessageTooBig if code == TOO_BIG else SocketFailed)(f"the WebSocket was closed with code {code}")
        try:
            message = json.loads(data)
        except ValueError as error:
            raise SocketFailed("received a message that is not JSON") from error
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        self._connection.close(timeout=1)
        # If the server has closed first, close() does nothing and leaves the TCP socket open.
        self._connection.shutdown()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._send_text(json.dumps(message))

    def _send_text(self, text: str) -> None:
        try:
            self._connection.send(text)
        except self._broken as error:
            raise SocketFailed(str(error)) from error


def split_by_frame_size(record_ids: Sequence[str]) -> list[list[str]]:
    """Splits ids into messages of at most 100 ids, each small enough for one WebSocket frame."""
    groups: list[list[str]] = []
    size = start = len(json.dumps({"action": "watch", "task_ids": []}))
    for record_id in record_ids:
        length = len(json.dumps(record_id)) + 2
        if not groups or len(groups[-1]) == IDS_A_MESSAGE or size + length > LARGEST_FRAME:
            groups.append([])
            size = start
        groups[-1].append(record_id)
        size += length
    return groups


def _proxy_options(proxy: str | None) -> dict[str, Any]:
    """Returns websocket-client's options for this proxy.

    Without a proxy, returns no options; then websocket-client reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    if not proxy:
        return {}
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    options: dict[str, Any] = {"http_proxy_host": parts.hostname, "proxy_type": "http"}
    options["http_proxy_port"] = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.username:
        options["http_proxy_auth"] = (unquote(parts.username), unquote(parts.password or ""))
    return options


# --- watching
# Follows records until they end: over the WebSocket, or by polling if that does not work.

QUIET_SECONDS = 15.0
FIRST_POLL, LONGEST_POLL = 0.5, 5.0
# A watch lasts minutes or hours: an API that is unavailable for less than this does not end it.
OUTAGE_SECONDS = 60.0
POLLED_AT_ONCE = 50


class Watch:
    """Iterating yields the current state of each record, then every change, until all records have ended."""

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
        """Returns the record if the caller knows it already, else reads it.

        A submit may have just created thousands of records, which need not be read again."""
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
        """Yields the record if it has changed since it was last yielded."""
        if self._latest.get(record_id) == record:
            return
        self._latest[record_id] = record
        change = Change(record_id, record)
        if change.ended and record_id in self._pending:
            self._pending.remove(record_id)
        yield change

    def _until_deadline(self, pause: float) -> float:
        """Returns the pause, shortened to the time left; raises WaitTimeout if no time is left."""
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{self._unfinished()} had not ended after {self._timeout:g} s")
        return min(pause, left)

    def _unfinished(self) -> str:
        """Returns the ids and statuses of the records that have not ended, at most three of them."""
        named = [f"{one} ({self._latest.get(one, {}).get('status', 'unknown')})" for one in self._pending[:3]]
        more = f" and {len(self._pending) - 3} more" if len(self._pending) > 3 else ""
        return ", ".join(named) + more


def watch(client: Client, *record_ids: str, timeout: float | None = None) -> Watch:
    """Yields the current state of each record, then every change, until all records have ended."""
    return Watch(client, record_ids, timeout=timeout)


def wait(client: Client, record_id: str, *, timeout: float | None = None) -> Change:
    """Waits until the record has ended and returns its last state."""
    return client.wait(record_id, timeout=timeout)
