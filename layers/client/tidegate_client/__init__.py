"""Tidegate's Python package: a typed API client, the `tidegate` command and the agent that runs on hosts."""

from tidegate_client.async_client import AsyncClient
from tidegate_client.client import Client
from tidegate_client.errors import (
    ApiError,
    ChecksumMismatch,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    RateLimited,
    ServerError,
    TidegateError,
    TransferError,
    Unauthorized,
    Unreachable,
    WaitTimeout,
)
from tidegate_client.model import Model, Page
from tidegate_client.records import Change
from tidegate_client.watching import wait, watch
from tidegate_client.webhooks import NotVerified, verify

__all__ = [
    "ApiError",
    "AsyncClient",
    "Change",
    "ChecksumMismatch",
    "Client",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "Model",
    "NotFound",
    "NotVerified",
    "Page",
    "RateLimited",
    "ServerError",
    "TidegateError",
    "TransferError",
    "Unauthorized",
    "Unreachable",
    "WaitTimeout",
    "verify",
    "wait",
    "watch",
]
