"""What must outlive the process: results the API has not taken yet, and part files that may need sweeping."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from tidegate_client.errors import TidegateError
from tidegate_client.models import TransferResult

Key = tuple[str, str]

SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    transfer_id TEXT, container_id TEXT, body TEXT NOT NULL, PRIMARY KEY (transfer_id, container_id));
CREATE TABLE IF NOT EXISTS parts (path TEXT PRIMARY KEY, since REAL NOT NULL);
"""


class AlreadyRunning(TidegateError):
    """Another agent process holds this journal."""


class Journal:
    """SQLite with full sync: a committed result is on the disk, and a kill in the middle leaves the old state."""

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
            raise AlreadyRunning(f"another agent uses {directory}: {error}") from error

    def record(self, result: TransferResult) -> None:
        row = (result["transfer_id"], result["container_id"], json.dumps(result))
        self._write("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)

    def pending(self, at_most: int = 100) -> list[TransferResult]:
        with self._lock:
            rows = self._base.execute("SELECT body FROM results LIMIT ?", (at_most,)).fetchall()
        return [cast(TransferResult, json.loads(body)) for (body,) in rows]

    def has(self, key: Key) -> bool:
        query = "SELECT 1 FROM results WHERE transfer_id = ? AND container_id = ?"
        with self._lock:
            return self._base.execute(query, key).fetchone() is not None

    def acknowledge(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._base.execute("BEGIN")
            self._base.executemany("DELETE FROM results WHERE transfer_id = ? AND container_id = ?", list(keys))
            self._base.execute("COMMIT")

    def part_opened(self, path: Path) -> None:
        self._write("INSERT OR REPLACE INTO parts VALUES (?, ?)", (os.fspath(path), self._now()))

    def part_closed(self, path: Path) -> None:
        self._write("DELETE FROM parts WHERE path = ?", (os.fspath(path),))

    def sweep_parts(self, older_than: float) -> int:
        """Remove part files of transfers that nobody came back for."""
        with self._lock:
            query = "SELECT path FROM parts WHERE since < ?"
            rows = self._base.execute(query, (self._now() - older_than,)).fetchall()
        for (path,) in rows:
            Path(path).unlink(missing_ok=True)
            self.part_closed(Path(path))
        return len(rows)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        with self._lock:
            self._base.execute(statement, values)
