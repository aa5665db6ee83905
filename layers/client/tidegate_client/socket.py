"""The API's WebSocket: subscribe to records, hear of their changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from tidegate_client.client import Client
from tidegate_client.errors import TidegateError

IDS_A_MESSAGE = 100
# API Gateway closes the connection over a larger frame, with code 1009.
LARGEST_FRAME = 32 * 1024
TOO_BIG = 1009
BEAT = '{"action":"beat"}'


class SocketFailed(TidegateError):
    """The WebSocket cannot be used (any more); polling still can."""


class MessageTooBig(SocketFailed):
    """Closed with code 1009. What was sent or watched would be too big again: polling is what is left."""


class NoSocketLibrary(SocketFailed):
    """websocket-client is not installed."""


def _library() -> Any:
    """websocket-client is an extra of the package; what lacks it polls."""
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
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """`about` is what a host tells of itself."""
        self._library = _library()
        self._broken = (OSError, self._library.WebSocketException)
        ticket = client.operations.ticket()
        address = ws_url or ticket.get("ws_url")
        if not address:
            raise SocketFailed("no WebSocket address is known")
        query = urlencode({**(about or {}), "ticket": ticket["ticket"]})
        try:
            self._connection: Any = self._library.create_connection(
                f"{address}?{query}",
                timeout=timeout,
                **_proxy_options(proxy),
            )
        except self._broken as error:
            raise SocketFailed(f"{address}: {error}") from error

    def watch(self, record_ids: Sequence[str]) -> None:
        for ids in by_frames(record_ids):
            self._send({"action": "watch", "task_ids": ids})

    def ping(self) -> None:
        """As a message, not a frame: only messages keep API Gateway from closing an idle connection."""
        self._send({"action": "ping"})

    def beat(self) -> None:
        """An agent's sign of life, which nobody answers."""
        self._send_text(BEAT)

    def receive(self, wait: float) -> dict[str, Any] | None:
        """The next message, or None when `wait` seconds brought none."""
        try:
            self._connection.settimeout(wait)
            opcode, data = self._connection.recv_data()
        except self._library.WebSocketTimeoutException:
            return None
        except self._broken as error:
            raise SocketFailed(str(error)) from error
        if opcode == self._library.ABNF.OPCODE_CLOSE:
            code = int.from_bytes(data[:2], "big")
            raise (MessageTooBig if code == TOO_BIG else SocketFailed)(f"closed with code {code}")
        try:
            message = json.loads(data)
        except ValueError as error:
            raise SocketFailed("not JSON") from error
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        self._connection.close(timeout=1)
        # After the server's own goodbye, close() takes the connection for closed and leaves the socket open.
        self._connection.shutdown()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._send_text(json.dumps(message))

    def _send_text(self, text: str) -> None:
        try:
            self._connection.send(text)
        except self._broken as error:
            raise SocketFailed(str(error)) from error


def by_frames(record_ids: Sequence[str]) -> list[list[str]]:
    """The ids in groups that one message may name: a hundred at most, and within a frame's bytes."""
    groups: list[list[str]] = []
    size = start = len(json.dumps({"action": "watch", "task_ids": []}))
    for record_id in record_ids:
        more = len(json.dumps(record_id)) + 2
        if not groups or len(groups[-1]) == IDS_A_MESSAGE or size + more > LARGEST_FRAME:
            groups.append([])
            size = start
        groups[-1].append(record_id)
        size += more
    return groups


def _proxy_options(proxy: str | None) -> dict[str, Any]:
    """Without one, websocket-client reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY by itself."""
    if not proxy:
        return {}
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    options: dict[str, Any] = {"http_proxy_host": parts.hostname, "proxy_type": "http"}
    options["http_proxy_port"] = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.username:
        options["http_proxy_auth"] = (unquote(parts.username), unquote(parts.password or ""))
    return options
