"""The API's WebSocket: subscribe to records and receive their changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from tidegate_client.client import Client
from tidegate_client.errors import TidegateError

IDS_A_MESSAGE = 100
# API Gateway closes the connection with code 1009 if a frame is larger.
LARGEST_FRAME = 32 * 1024
TOO_BIG = 1009
BEAT = '{"action":"beat"}'


class SocketFailed(TidegateError):
    """The WebSocket cannot be used, or was closed; the caller can poll instead."""


class MessageTooBig(SocketFailed):
    """Closed with code 1009: a message was too big, and the same would happen again. The caller polls instead."""


class NoSocketLibrary(SocketFailed):
    """websocket-client is not installed."""


def _library() -> Any:
    """websocket-client may be missing, as in a Lambda layer; callers poll then."""
    try:
        import websocket
    except ImportError as error:
        raise NoSocketLibrary("websocket-client is not installed") from error
    return websocket


class Socket:
    def __init__(
        self,
        client: Client,
        ws_url: str | None,
        *,
        timeout: float = 10.0,
        proxy: str | None = None,
        host_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Connects with a fresh ticket. `host_facts`: facts about an agent's host."""
        self._library = _library()
        self._broken = (OSError, self._library.WebSocketException)
        ticket = client.operations.ticket()
        address = ws_url or ticket.get("ws_url")
        if not address:
            raise SocketFailed("the API gives no WebSocket address; set TIDEGATE_WS_URL to the stack's WebSocket URL")
        query = urlencode({**(host_facts or {}), "ticket": ticket["ticket"]})
        try:
            self._connection: Any = self._library.create_connection(
                f"{address}?{query}",
                timeout=timeout,
                **_proxy_options(proxy),
            )
        except self._broken as error:
            raise SocketFailed(f"the WebSocket at {address} cannot be opened: {error}") from error

    def watch(self, record_ids: Sequence[str]) -> None:
        """Subscribes to records; each one that has ended already is sent at once."""
        for ids in split_by_frame_size(record_ids):
            self._send({"action": "watch", "task_ids": ids})

    def ping(self) -> None:
        """Sends a message, not a ping frame: only messages keep API Gateway from closing an idle connection."""
        self._send({"action": "ping"})

    def beat(self) -> None:
        """An agent's heartbeat; the API does not answer it."""
        self._send_text(BEAT)

    def receive(self, wait: float) -> dict[str, Any] | None:
        """The next message, or None if none came within `wait` seconds."""
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
    """Splits the ids into messages of at most 100 ids that each fit into one frame."""
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
    """Options for websocket-client, which reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY by itself if there is no proxy."""
    if not proxy:
        return {}
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    options: dict[str, Any] = {"http_proxy_host": parts.hostname, "proxy_type": "http"}
    options["http_proxy_port"] = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.username:
        options["http_proxy_auth"] = (unquote(parts.username), unquote(parts.password or ""))
    return options
