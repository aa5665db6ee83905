"""Replacements for what Python 3.9 and 3.10 lack. Hosts run the client on their own Python; RHEL 9 has 3.9."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

# Seconds to wait for the TLS close message; before 3.11 asyncio does not wait for it at all.
TLS_GOODBYE: dict[str, Any] = {"ssl_shutdown_timeout": 1.0} if sys.version_info >= (3, 11) else {}
# Of a future in another thread; from 3.11 on it is the built-in one.
FutureTimeout = concurrent.futures.TimeoutError


if sys.version_info >= (3, 11):
    timeout = asyncio.timeout
else:
    import async_timeout

    @contextlib.asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        """Like `asyncio.timeout`: raises the built-in TimeoutError when the block takes longer than `seconds`.

        The built-in TimeoutError is an OSError; before 3.11, asyncio's own TimeoutError is another class."""
        try:
            async with async_timeout.timeout(seconds):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError from error


@contextlib.contextmanager
def lost_connections() -> Iterator[None]:
    """Turns the AttributeError of a lost TLS connection in Python 3.9 and 3.10 into ConnectionResetError.

    In these versions, a TLS transport drops its socket before it notifies its protocol. Between these two moments, the
    methods of the transport fail with AttributeError."""
    try:
        yield
    except AttributeError as error:
        raise ConnectionResetError("the connection was lost") from error


def count_bits(number: int) -> int:
    """Returns the number of 1 bits."""
    return number.bit_count() if sys.version_info >= (3, 10) else bin(number).count("1")


def moment(text: str) -> datetime:
    """Parses a time of the API, such as 2026-11-18T10:00:00.000Z.
    Before 3.11, `fromisoformat` does not accept the Z."""
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
    """Returns SQLite's primary result code of an error; 0 if it is not known."""
    known = getattr(error, "sqlite_errorcode", None)
    if known is not None:
        return int(known) & 0xFF
    return next((code for text, code in _SQLITE_TEXTS.items() if text in str(error)), 0)
