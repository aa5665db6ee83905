"""Sends messages to connected WebSocket clients, and closes connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import urllib3
from aws_lambda_powertools import Logger
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from tidegate.notifications.websocket_store import ConnectionStore

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

logger = Logger(service="tidegate", child=True)

_THREADS = 16
_SETTLED = (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.GONE)
_RETRIES = urllib3.Retry(total=2, status_forcelist=(429, 500, 502, 503), allowed_methods=None, backoff_factor=0.2)


class Sent(NamedTuple):
    """Ids of connections that did not get their message: those that no longer exist, and those that may be open."""

    gone: set[str]
    failed: set[str]


class WebSocketSender:
    """Sends signed requests without a boto3 client: a Job may have hundreds of watchers, and this is much cheaper."""

    def __init__(self, endpoint: str, region: str, credentials: Callable[[], ReadOnlyCredentials]) -> None:
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials
        self._pool = urllib3.PoolManager(
            maxsize=_THREADS, timeout=urllib3.Timeout(connect=3, read=5), retries=_RETRIES, block=True
        )

    def send(self, messages: Iterable[tuple[str, str]]) -> Sent:
        """Sends (connection id, text) pairs in parallel."""
        pending = list(messages)
        statuses = self._call_all("POST", pending)
        results = [(to, status) for (to, _), status in zip(pending, statuses, strict=True)]
        return Sent(
            gone={to for to, status in results if status == HTTPStatus.GONE},
            failed={to for to, status in results if status not in _SETTLED},
        )

    def close(self, connection_ids: Collection[str]) -> set[str]:
        """Closes connections. Returns those that may still be open."""
        statuses = self._call_all("DELETE", [(connection_id, "") for connection_id in connection_ids])
        return {to for to, status in zip(connection_ids, statuses, strict=True) if status not in _SETTLED}

    def _call_all(self, method: str, calls: Sequence[tuple[str, str]]) -> list[int | None]:
        if not calls:
            return []
        auth = SigV4Auth(self._credentials(), "execute-api", self._region)
        if len(calls) == 1:
            return [self._call(method, auth, *calls[0])]
        with ThreadPoolExecutor(min(_THREADS, len(calls))) as threads:
            return list(threads.map(lambda pair: self._call(method, auth, *pair), calls))

    def _call(self, method: str, auth: SigV4Auth, connection_id: str, text: str) -> int | None:
        url = f"{self._endpoint}/%40connections/{quote(connection_id, safe='')}"
        request = AWSRequest(method, url, data=text.encode())
        auth.add_auth(request)
        try:
            answer = self._pool.request(method, url, body=request.data, headers=dict(request.headers.items()))
        except urllib3.exceptions.HTTPError as error:
            # The other messages must still be sent.
            logger.warning("a WebSocket connection was not reached", connection_id=connection_id, error=str(error))
            return None
        if answer.status not in _SETTLED:
            logger.warning("API Gateway refused a message", connection_id=connection_id, status=answer.status)
        return answer.status


def close_connections_of_key(connections: ConnectionStore, sender: WebSocketSender, key_record_id: str) -> int:
    """Closes every connection that was made with a key. Returns how many may still be open."""
    found = connections.of_key(key_record_id)
    still_open = sender.close(found) if found else set()
    for connection_id in found:
        if connection_id not in still_open:
            connections.remove(connection_id)
    return len(still_open)
