"""Tidegate for callers: a typed client, the `tidegate` command and the host agent."""

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
)

__all__ = [
    "ApiError",
    "ChecksumMismatch",
    "Client",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "NotFound",
    "RateLimited",
    "ServerError",
    "TidegateError",
    "TransferError",
    "Unauthorized",
    "Unreachable",
]
