"""What must outlive the process: untold results, the newest content applied to each path, and part files."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from tidegate_client.errors import TidegateError
from tidegate_client.models import TransferResult

Key = tuple[str, str]
# Bounded by count, not by age: a clock that jumps must not make the agent forget what is newer.
REMEMBERED_PATHS = 50_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    transfer_id TEXT, container_id TEXT, body TEXT NOT NULL, PRIMARY KEY (transfer_id, container_id));
CREATE TABLE IF NOT EXISTS parts (path TEXT PRIMARY KEY, since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS applied (
    number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE NOT NULL, sequence INTEGER NOT NULL,
    signature TEXT NOT NULL);
"""


class AlreadyRunning(TidegateError):
    """Another agent process holds this journal."""


class JournalError(OSError):
    """The journal could not be read or written, as when the disk is full."""


class Applied(NamedTuple):
    """The newest content that was put at a path, or was about to be when the process ended."""

    sequence: int
    signature: str


class Journal:
    """SQLite with full sync: what is committed is on the disk, and a kill in the middle leaves the old state."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._now = now
        self._lock = threading.Lock()
        self._base = sqlite3.connect(
            directory / "journal.sqlite", isolation_level=None, timeout=0, check_same_thread=False
        )
        try:
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA synchronous = FULL")
            # The first write takes the exclusive lock, which the process then holds for life.
            self._base.executescript("BEGIN IMMEDIATE;" + SCHEMA + "COMMIT;")
        except sqlite3.OperationalError as error:
            self._base.close()
            if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise _translated(error) from error
            raise AlreadyRunning(f"another agent uses {directory}: {error}") from error

    def record(self, result: TransferResult) -> None:
        row = (result["transfer_id"], result["container_id"], json.dumps(result))
        with self._writing() as base:
            base.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)

    def pending(self, at_most: int = 100) -> list[TransferResult]:
        rows = self._read("SELECT body FROM results LIMIT ?", at_most)
        return [cast(TransferResult, json.loads(body)) for (body,) in rows]

    def pending_count(self) -> int:
        return int(self._read("SELECT count(*) FROM results")[0][0])

    def has(self, key: Key) -> bool:
        return bool(self._read("SELECT 1 FROM results WHERE transfer_id = ? AND container_id = ?", *key))

    def acknowledge(self, keys: Iterable[Key]) -> None:
        with self._writing() as base:
            base.executemany("DELETE FROM results WHERE transfer_id = ? AND container_id = ?", list(keys))

    def applied(self, path: Path) -> Applied | None:
        rows = self._read("SELECT sequence, signature FROM applied WHERE path = ?", os.fspath(path))
        return Applied(*rows[0]) if rows else None

    def apply(self, path: Path, applied: Applied | None) -> None:
        """Committed before the rename: after a crash in between, older content is still refused."""
        with self._writing() as base:
            base.execute("DELETE FROM applied WHERE path = ?", (os.fspath(path),))
            if applied:
                base.execute(
                    "INSERT INTO applied (path, sequence, signature) VALUES (?, ?, ?)", (os.fspath(path), *applied)
                )
            base.execute(
                "DELETE FROM applied WHERE number <= (SELECT max(number) FROM applied) - ?", [REMEMBERED_PATHS]
            )

    def part_opened(self, path: Path) -> None:
        with self._writing() as base:
            base.execute("INSERT OR REPLACE INTO parts VALUES (?, ?)", (os.fspath(path), self._now()))

    def part_closed(self, path: Path) -> None:
        with self._writing() as base:
            base.execute("DELETE FROM parts WHERE path = ?", (os.fspath(path),))

    def parts(self) -> list[tuple[Path, float]]:
        """Part files and the time they were last opened, oldest first."""
        rows = self._read("SELECT path, since FROM parts ORDER BY since")
        return [(Path(path), float(since)) for path, since in rows]

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._base.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise _translated(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; whatever goes wrong, none is left open for the next one to stumble over."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                raise _translated(error) from error
            finally:
                # Closed by now, if the agent ends.
                with suppress(sqlite3.ProgrammingError):
                    if self._base.in_transaction:
                        self._base.rollback()


def _translated(error: sqlite3.Error) -> JournalError:
    full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return JournalError(errno.ENOSPC if full else errno.EIO, f"the agent's journal cannot be used: {error}")
