"""Faults of the connection between botocore and AWS: lost answers, a slow S3, closed sockets.

They are injected below botocore's retries, so that botocore sends again as it does on AWS.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore import endpoint
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from moto.core.botocore_stubber import BotocoreStubber, MockRawResponse

from tidegate import app as composition

_ALL_ATTEMPTS = 99
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>We encountered an internal error.</Message></Error>"
Send = Callable[[Any], Any]
Trouble = Callable[[Any, Send], Any]


class Wire:
    def __init__(self) -> None:
        self._trouble: dict[int, Trouble] = {}
        # DynamoDB answers a repeated transaction with the same token as it answered the first one.
        self._transactions: dict[str, tuple[int, Any, bytes]] = {}
        # Hosts that were connected again since all sockets were closed; None if they were not closed.
        self._reconnected: set[str] | None = None

    @contextmanager
    def patched(self) -> Iterator[None]:
        send = BotocoreStubber.__call__

        def sent(stub: BotocoreStubber, event_name: str, request: Any, **more: Any) -> Any:
            def passed(request: Any) -> Any:
                return self._once(request, lambda: send(stub, event_name, request, **more))

            host = str(request.url).split("/")[2]
            # Only Step Functions calls Lambda here, and it does not use the connections of a frozen function.
            is_ours = not host.startswith("lambda.")
            if is_ours and self._reconnected is not None and host not in self._reconnected:
                self._reconnected.add(host)
                raise ConnectionClosedError(endpoint_url=request.url)
            trouble = self._trouble.get(threading.get_ident())
            return trouble(request, passed) if trouble else passed(request)

        quick = SimpleNamespace(sleep=lambda _: None, time=time.time)
        with patch.object(BotocoreStubber, "__call__", sent), patch.object(endpoint, "time", quick):
            yield

    def _once(self, request: Any, send: Callable[[], Any]) -> Any:
        token = _token(request)
        if token is None:
            return send()
        if token in self._transactions:
            status, headers, body = self._transactions[token]
            return AWSResponse(request.url, status, headers, MockRawResponse(body))
        answer = send()
        if answer.status_code == 200:
            self._transactions[token] = (200, answer.headers, answer.content)
        return answer

    @contextmanager
    def meets(self, trouble: Trouble) -> Iterator[None]:
        """Applies the fault to everything that this thread sends inside the block."""
        self._trouble[threading.get_ident()] = trouble
        try:
            yield
        finally:
            del self._trouble[threading.get_ident()]

    def sockets_die(self) -> None:
        """The next request to each host finds its connection closed, as do outgoing HTTP calls."""
        self._reconnected = set()
        for manager in composition.app().http._pools.values():
            for key in manager.pools.keys():  # noqa: SIM118 - it is no dict
                _close_sockets(manager.pools.get(key))


def _close_sockets(pool: Any) -> None:
    for connection in list(pool.pool.queue) if pool is not None and pool.pool is not None else ():
        if connection is not None and getattr(connection, "sock", None) is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _token(request: Any) -> str | None:
    target = request.headers.get("X-Amz-Target", b"")
    if not str(target if isinstance(target, str) else target.decode()).endswith("TransactWriteItems"):
        return None
    token = json.loads(request.body).get("ClientRequestToken")
    return str(token) if token else None


def answer_lost(attempts: int) -> Trouble:
    """The first `attempts` take effect, but the connection breaks before their answers arrive."""
    seen = 0

    def trouble(request: Any, send: Send) -> Any:
        nonlocal seen
        seen += 1
        if seen > attempts:
            return send(request)
        send(request)
        if seen % 2:
            raise ConnectionClosedError(endpoint_url=request.url)
        raise ReadTimeoutError(endpoint_url=request.url)

    return trouble


def never_answered() -> Trouble:
    return answer_lost(_ALL_ATTEMPTS)


def silent() -> Trouble:
    """Takes effect once, but each attempt times out before a header arrives."""
    seen = 0

    def trouble(request: Any, send: Send) -> Any:
        nonlocal seen
        seen += 1
        if seen == 1:
            send(request)
        raise ReadTimeoutError(endpoint_url=request.url)

    return trouble


def refused(status: int, code: bytes) -> Trouble:
    """Nothing takes effect, and the body is an error even if the status is 200."""

    def trouble(request: Any, _: Send) -> Any:
        headers = HTTPHeaders.from_dict({"content-type": "application/xml"})
        return AWSResponse(request.url, status, headers, MockRawResponse(_ERROR % code))

    return trouble
