"""The API's WebSocket: subscribe to records, hear of their changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from tidegate_client.client import Client
from tidegate_client.errors import TidegateError

IDS_A_MESSAGE = 100


class SocketFailed(TidegateError):
    """The WebSocket cannot be used (any more); polling still can."""


def _library() -> Any:
    """websocket-client is an extra of the package: hosts that only run the agent do without it."""
    try:
        import websocket
    except ImportError as error:
        raise SocketFailed("websocket-client is not installed") from error
    return websocket


class Socket:
    def __init__(self, client: Client, ws_url: str | None, *, timeout: float = 10.0) -> None:
        self._library = _library()
        self._broken = (OSError, self._library.WebSocketException)
        ticket = client.operations.ticket()
        address = ws_url or ticket.get("ws_url")
        if not address:
            raise SocketFailed("no WebSocket address is known")
        try:
            self._connection: Any = self._library.create_connection(
                f"{address}?{urlencode({'ticket': ticket['ticket']})}", timeout=timeout
            )
        except self._broken as error:
            raise SocketFailed(f"{address}: {error}") from error

    def watch(self, record_ids: Sequence[str]) -> None:
        for start in range(0, len(record_ids), IDS_A_MESSAGE):
            self._send({"action": "watch", "task_ids": list(record_ids[start : start + IDS_A_MESSAGE])})

    def ping(self) -> None:
        """As a message, not a frame: only messages keep API Gateway from closing an idle connection."""
        self._send({"action": "ping"})

    def receive(self, wait: float) -> dict[str, Any] | None:
        """The next message, or None when `wait` seconds brought none."""
        try:
            self._connection.settimeout(wait)
            text = self._connection.recv()
        except self._library.WebSocketTimeoutException:
            return None
        except self._broken as error:
            raise SocketFailed(str(error)) from error
        try:
            message = json.loads(text)
        except ValueError as error:
            raise SocketFailed("not JSON" if text else "closed") from error
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        self._connection.close(timeout=1)
        # After the server's own goodbye, close() takes the connection for closed and leaves the socket open.
        self._connection.shutdown()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.send(json.dumps(message))
        except self._broken as error:
            raise SocketFailed(str(error)) from error
