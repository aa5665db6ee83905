"""Messages to connected clients."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_apigatewaymanagementapi import ApiGatewayManagementApiClient

_THREADS = 16


class Connections:
    """Implements `services.sockets.Outgoing`."""

    def __init__(self, client: ApiGatewayManagementApiClient) -> None:
        self._client = client

    def send(self, messages: Iterable[tuple[str, str]]) -> set[str]:
        """(connection id, text) pairs, side by side. Answers the connections that are gone."""
        pending = list(messages)
        if len(pending) <= 1:
            return {connection for connection, text in pending if not self._post(connection, text)}
        with ThreadPoolExecutor(min(_THREADS, len(pending))) as threads:
            reached = list(threads.map(lambda pair: self._post(*pair), pending))
        return {connection for (connection, _), came in zip(pending, reached, strict=True) if not came}

    def _post(self, connection_id: str, text: str) -> bool:
        try:
            self._client.post_to_connection(ConnectionId=connection_id, Data=text.encode())
        except self._client.exceptions.GoneException:
            return False
        except (BotoCoreError, ClientError):
            # One connection in trouble is not the others' loss; its client reads the record again by itself.
            return True
        return True
