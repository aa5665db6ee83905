"""boto3 clients with time-outs and retries that suit a function of a few seconds.

boto3 is imported when the first client is used: every handler imports this module, and boto3 is half of a cold start.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3
    from botocore.credentials import ReadOnlyCredentials

_COMMON: dict[str, Any] = {
    "connect_timeout": 3,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 5},
    "max_pool_connections": 32,
}
_OWN: dict[str, dict[str, Any]] = {
    # Presigned URLs need v4 signatures. Path style also works where a bucket has no host name of its own.
    "s3": {"signature_version": "s3v4", "s3": {"addressing_style": "path"}},
    # SES may have sent a mail although its answer was lost: boto3 must not send it again.
    "sesv2": {"retries": {"mode": "standard", "total_max_attempts": 1}},
}


_making = threading.Lock()


def client(service: str, endpoint_url: str | None = None, region: str | None = None) -> Any:
    """A new boto3 client with this module's time-outs and retries."""
    import boto3
    from botocore.config import Config

    config = Config(**(_COMMON | _OWN.get(service, {})))
    return boto3.client(service, config=config, endpoint_url=endpoint_url, region_name=region)


class _LazyClient:
    """A boto3 client that is created at its first use: creating one adds 20 to 60 ms to a cold start."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__.get("_made")
        if made is None:
            # Several threads may use a client at once, but not create one.
            with _making:
                made = self.__dict__.get("_made")
                if made is None:
                    made = self.__dict__["_made"] = client(self._service)
        return getattr(made, name)


def lazy_client(service: str) -> Any:
    """A client that is created when it is first used."""
    return _LazyClient(service)


@cache
def _session() -> boto3.Session:
    import boto3

    return boto3.Session()


def credentials() -> ReadOnlyCredentials:
    """The function's own credentials, for requests that are signed without a client."""
    from botocore.exceptions import NoCredentialsError

    found = _session().get_credentials()
    if found is None:
        raise NoCredentialsError
    return found.get_frozen_credentials()


def region() -> str:
    return str(_session().region_name)
