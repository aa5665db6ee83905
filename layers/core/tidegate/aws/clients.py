"""boto3 clients with the time-outs and retries that suit a function of a few seconds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import NoCredentialsError

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_COMMON: dict[str, Any] = {
    "connect_timeout": 3,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 5},
    "max_pool_connections": 32,
}
_OWN: dict[str, dict[str, Any]] = {
    # Presigned URLs need v4 signatures; path style also works where bucket names do not resolve as hosts.
    "s3": {"signature_version": "s3v4", "s3": {"addressing_style": "path"}},
}


def client(service: str, endpoint_url: str | None = None) -> Any:
    config = Config(**_COMMON, **_OWN.get(service, {}))
    return boto3.client(service, config=config, endpoint_url=endpoint_url)


@cache
def _session() -> boto3.Session:
    return boto3.Session()


def credentials() -> ReadOnlyCredentials:
    """The function's own, for requests that are signed without a client."""
    found = _session().get_credentials()
    if found is None:
        raise NoCredentialsError
    return found.get_frozen_credentials()


def region() -> str:
    return str(_session().region_name)
