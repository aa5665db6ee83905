"""What Python 3.9 and 3.10 lack: the client runs on the Python of the hosts (RHEL 9 has 3.9, Ubuntu 22.04 has 3.10)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

# Seconds for the TLS goodbye; before 3.11 asyncio does not wait for it at all.
TLS_GOODBYE: dict[str, Any] = {"ssl_shutdown_timeout": 1.0} if sys.version_info >= (3, 11) else {}
# Of a future in another thread; from 3.11 on it is the built-in one.
FutureTimeout = concurrent.futures.TimeoutError


if sys.version_info >= (3, 11):
    timeout = asyncio.timeout
else:
    import async_timeout

    @contextlib.asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        """Raises the built-in TimeoutError, which is an OSError: asyncio's own is another class before 3.11."""
        try:
            async with async_timeout.timeout(seconds):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError from error


@contextlib.contextmanager
def lost_connections() -> Iterator[None]:
    """Raises ConnectionResetError where a TLS transport of Python 3.9 or 3.10 has lost its connection.

    It forgets its socket before it says so to its protocol; its methods then fail with AttributeError.
    """
    try:
        yield
    except AttributeError as error:
        raise ConnectionResetError("the connection was lost") from error


def count_bits(number: int) -> int:
    return number.bit_count() if sys.version_info >= (3, 10) else bin(number).count("1")


def moment(text: str) -> datetime:
    """The time that the API wrote, such as 2026-11-18T10:00:00.000Z; before 3.11 `fromisoformat` knows no Z."""
    return datetime.fromisoformat(text[:-1] + "+00:00" if str(text).endswith("Z") else text)


# Before 3.11 an error of SQLite has its text only.
_SQLITE_TEXTS = {
    "database is locked": 5,
    "database table is locked": 6,
    "database disk image is malformed": 11,
    "database or disk is full": 13,
    "file is not a database": 26,
}


def sqlite_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 if it is not known."""
    known = getattr(error, "sqlite_errorcode", None)
    if known is not None:
        return int(known) & 0xFF
    return next((code for text, code in _SQLITE_TEXTS.items() if text in str(error)), 0)
