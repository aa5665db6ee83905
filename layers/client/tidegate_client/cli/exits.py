"""Exit codes by kind of error, for scripts."""

from __future__ import annotations

from enum import IntEnum

from tidegate_client import errors
from tidegate_client.webhooks import NotVerified


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    AUTH = 3
    NOT_FOUND = 4
    CONFLICT = 5
    UNREACHABLE = 6
    SERVER = 7
    TIMEOUT = 8
    INTERRUPTED = 130


MEANINGS = """exit codes:
  0  success
  1  the work failed (a download, an export, a batch, a transfer of bytes)
  2  wrong usage, or the API refused the input
  3  no key, an unknown key, a wrong API address, or a scope that the key lacks
  4  not found, or past its retention
  5  not possible in the record's current state
  6  the API cannot be reached
  7  the API failed, or is too busy
  8  gave up waiting (--timeout)
  130  interrupted (Ctrl-C)"""

_BY_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (errors.ConfigError, Exit.AUTH),
    (errors.UsageError, Exit.USAGE),
    (errors.Unauthorized, Exit.AUTH),
    (errors.Forbidden, Exit.AUTH),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Gone, Exit.NOT_FOUND),
    (errors.Conflict, Exit.CONFLICT),
    (errors.Invalid, Exit.USAGE),
    (errors.RateLimited, Exit.SERVER),
    (errors.ServerError, Exit.SERVER),
    (errors.ApiError, Exit.SERVER),
    (errors.Unreachable, Exit.UNREACHABLE),
    (errors.WaitTimeout, Exit.TIMEOUT),
    (NotVerified, Exit.FAILED),
)


def exit_for(error: Exception) -> Exit:
    """The exit code for an error; 1 for one without a code of its own."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)
