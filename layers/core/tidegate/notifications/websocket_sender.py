"""Messages to connected clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import urllib3
from aws_lambda_powertools import Logger
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

logger = Logger(service="tidegate", child=True)

_THREADS = 16
_RETRIES = urllib3.Retry(total=2, status_forcelist=(429, 500, 502, 503), allowed_methods=None, backoff_factor=0.2)


class WebSocketSender:
    """Implements `services.sockets.Outgoing`, without boto3's client.

    A Job may have hundreds of watchers, and this call is made for each: signed and sent like this it is far cheaper.
    """

    def __init__(self, endpoint: str, region: str, credentials: Callable[[], ReadOnlyCredentials]) -> None:
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials
        self._pool = urllib3.PoolManager(
            maxsize=_THREADS, timeout=urllib3.Timeout(connect=3, read=5), retries=_RETRIES, block=True
        )

    def send(self, messages: Iterable[tuple[str, str]]) -> set[str]:
        """(connection id, text) pairs, side by side. Answers the connections that are gone."""
        pending = list(messages)
        if not pending:
            return set()
        auth = SigV4Auth(self._credentials(), "execute-api", self._region)
        if len(pending) == 1:
            reached = [self._post(auth, *pending[0])]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(pending))) as threads:
                reached = list(threads.map(lambda pair: self._post(auth, *pair), pending))
        return {connection for (connection, _), came in zip(pending, reached, strict=True) if not came}

    def _post(self, auth: SigV4Auth, connection_id: str, text: str) -> bool:
        url = f"{self._endpoint}/%40connections/{quote(connection_id, safe='')}"
        request = AWSRequest("POST", url, data=text.encode())
        auth.add_auth(request)
        try:
            answer = self._pool.request("POST", url, body=request.data, headers=dict(request.headers.items()))
        except urllib3.exceptions.HTTPError as error:
            # One connection in trouble is not the others' loss; its client reads the record again by itself.
            logger.warning("a message was not sent", connection_id=connection_id, error=str(error))
            return True
        if answer.status not in (HTTPStatus.OK, HTTPStatus.GONE):
            logger.warning("a message was refused", connection_id=connection_id, status=answer.status)
        return answer.status != HTTPStatus.GONE
