"""The agent's journal on disk (SQLite): unreported results, newest content of each path, part files, staged files."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from tidegate_client.compat import sqlite_code
from tidegate_client.errors import TidegateError
from tidegate_client.inputs import TransferResult

log = logging.getLogger("tidegate.agent")
Key = tuple[str, str]
# Limited by number, not by age: after a jump of the clock, older content must still be refused.
REMEMBERED_PATHS = 50_000
# SQLite's codes; `sqlite3` has their names from Python 3.11 on.
_BUSY, _LOCKED, _CORRUPT, _FULL, _NOT_A_DATABASE = 5, 6, 11, 13, 26

# `parts` is that of version 1.0, which may run again after a failed update; its files are only removed.
SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    transfer_id TEXT, container_id TEXT, body TEXT NOT NULL, PRIMARY KEY (transfer_id, container_id));
CREATE TABLE IF NOT EXISTS staged (
    transfer_id TEXT, container_id TEXT, body TEXT NOT NULL, PRIMARY KEY (transfer_id, container_id));
CREATE TABLE IF NOT EXISTS process (id INTEGER PRIMARY KEY CHECK (id = 1), instance TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hidden_files (
    path TEXT PRIMARY KEY, since REAL NOT NULL, content TEXT NOT NULL, secret TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (path TEXT PRIMARY KEY, since REAL NOT NULL);
INSERT OR IGNORE INTO hidden_files SELECT path, since, '', '' FROM parts;
DELETE FROM parts;
CREATE TABLE IF NOT EXISTS releases (name TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS kept (
    directory TEXT, signature TEXT, path TEXT NOT NULL, secret TEXT NOT NULL, PRIMARY KEY (directory, signature));
CREATE TABLE IF NOT EXISTS trees (
    path TEXT PRIMARY KEY, directory TEXT NOT NULL, signature TEXT NOT NULL, hidden TEXT NOT NULL,
    secret TEXT NOT NULL, uid INTEGER NOT NULL, entries BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS applied (
    number INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE NOT NULL, sequence INTEGER NOT NULL,
    signature TEXT NOT NULL);
"""


class AlreadyRunning(TidegateError):
    """Another agent process has this journal open."""


class JournalError(OSError):
    """The journal could not be read or written, for example because the disk is full."""


class Applied(NamedTuple):
    """The newest content of a path. It is recorded before the rename, so after a crash it may not be in place yet."""

    sequence: int
    signature: str


class HiddenFile(NamedTuple):
    """A file that is not in place yet. It has a hidden directory of its own, `path`, and a name, `secret`.

    Only the agent knows the name. If `secret` is empty, this is a part file of version 1.0, and `path` is the file
    itself."""

    path: Path
    secret: str


class TreeRow(NamedTuple):
    """An archive of a release that was unpacked to `path`, for the release's `directory`.

    `hidden`: where the tree is until it is moved to `path`. `signature` is empty once somebody has changed the tree.
    `uid`: the owner of the tree's files."""

    path: Path
    directory: Path
    signature: str
    hidden: HiddenFile
    uid: int


class _Damaged(sqlite3.DatabaseError):
    """SQLite opened the file, but found it inconsistent."""


class Journal:
    """The agent's SQLite journal.

    A commit returns when its data is on disk. After a crash within a transaction, the journal is as it was before that
    transaction."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._now = now
        self._lock = threading.Lock()
        self._file = directory / "journal.sqlite"
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if sqlite_code(error) in (_BUSY, _LOCKED):
                raise AlreadyRunning(
                    f"another agent process uses {directory}: stop it, or start this one with another --state-dir"
                ) from error
            if not isinstance(error, _Damaged) and sqlite_code(error) not in (_CORRUPT, _NOT_A_DATABASE):
                raise self._journal_error(error) from error
            self._connection = self._replace_unreadable(error)
        # When an unreadable journal was replaced, in seconds since 1970; 0 if that never happened.
        self.lost_at: int = self._connection.execute("PRAGMA user_version").fetchone()[0]

    def _open(self) -> sqlite3.Connection:
        # The names of hidden files are secrets. Those of SQLite's own files have the same mode.
        with suppress(OSError):
            self._file.touch(mode=0o600)
            self._file.chmod(0o600)
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA synchronous = FULL")
            # The first write takes the exclusive lock, which is held until the connection is closed.
            connection.executescript("BEGIN IMMEDIATE;" + SCHEMA + "COMMIT;")
            if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise _Damaged(found)
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    def _replace_unreadable(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        """Renames an unreadable journal, for example after a disk error, and starts a new journal.

        The new journal records the time of the loss."""
        renamed = self._file.with_name(f"{self._file.name}.unreadable-{int(self._now())}")
        log.error(
            "the journal cannot be read: it is renamed to %s, and a new one is used; unreported results are lost: %s",
            renamed,
            error,
        )
        self._file.replace(renamed)
        self._file.with_name(f"{self._file.name}-journal").unlink(missing_ok=True)
        connection = self._open()
        connection.execute(f"PRAGMA user_version = {int(self._now())}")
        return connection

    def begin_process(self) -> str:
        """Returns a new random id for this process. If there was an earlier process, a space and its id follow.

        A restarted agent names its predecessor, so that the API does not take the agent for a second host."""
        instance = secrets.token_hex(8)
        rows = self._read("SELECT instance FROM process")
        # On a full disk the next process names an older one, and counts as new.
        with suppress(JournalError), self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO process VALUES (1, ?)", (instance,))
        return " ".join([instance, *(before for (before,) in rows)])

    def record(self, result: TransferResult) -> None:
        """Stores a result until the API has accepted it."""
        row = (result["transfer_id"], result["container_id"], json.dumps(result))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)

    def pending(self, at_most: int = 100) -> list[TransferResult]:
        rows = self._read("SELECT body FROM results LIMIT ?", at_most)
        return [cast(TransferResult, json.loads(body)) for (body,) in rows]

    def pending_count(self) -> int:
        return int(self._read("SELECT count(*) FROM results")[0][0])

    def has_result(self, key: Key) -> bool:
        return bool(self._read("SELECT 1 FROM results WHERE transfer_id = ? AND container_id = ?", *key))

    def acknowledge(self, keys: Iterable[Key]) -> None:
        """Deletes results that the API has accepted."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM results WHERE transfer_id = ? AND container_id = ?", list(keys))

    def stage(self, key: Key, body: str, path: Path) -> None:
        """Records a staged file.

        The file is then no longer a part file, so no transfer resumes it and no sweep deletes it."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO staged VALUES (?, ?, ?)", (*key, body))
            connection.execute("DELETE FROM hidden_files WHERE path = ?", (os.fspath(path),))

    def unstage(self, key: Key) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM staged WHERE transfer_id = ? AND container_id = ?", key)

    def staged(self) -> list[str]:
        return [body for (body,) in self._read("SELECT body FROM staged")]

    def applied(self, path: Path) -> Applied | None:
        rows = self._read("SELECT sequence, signature FROM applied WHERE path = ?", os.fspath(path))
        return Applied(*rows[0]) if rows else None

    def apply(self, path: Path, applied: Applied | None) -> None:
        """Records the newest content of a path.

        Call it before the rename, so that older content is refused after a crash."""
        with self._writing() as connection:
            connection.execute("DELETE FROM applied WHERE path = ?", (os.fspath(path),))
            if applied:
                connection.execute(
                    "INSERT INTO applied (path, sequence, signature) VALUES (?, ?, ?)", (os.fspath(path), *applied)
                )
            connection.execute(
                "DELETE FROM applied WHERE number <= (SELECT max(number) FROM applied) - ?", [REMEMBERED_PATHS]
            )

    def releases(self) -> list[str]:
        return [body for (body,) in self._read("SELECT body FROM releases ORDER BY name")]

    def save_release(self, name: str, body: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO releases VALUES (?, ?)", (name, body))

    def drop_release(self, name: str) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM releases WHERE name = ?", (name,))

    def keep(self, directory: Path, signature: str, hidden: HiddenFile) -> None:
        """Records content of a release that is kept beside its path. The kept file is then no longer a part file."""
        row = (os.fspath(directory), signature, os.fspath(hidden.path), hidden.secret)
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", row)
            connection.execute("DELETE FROM hidden_files WHERE path = ?", (row[2],))

    def drop_kept(self, directory: Path, signature: str) -> None:
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM kept WHERE directory = ? AND signature = ?", (os.fspath(directory), signature)
            )

    def kept_file(self, directory: Path, signature: str) -> HiddenFile | None:
        rows = self._read(
            "SELECT path, secret FROM kept WHERE directory = ? AND signature = ?", os.fspath(directory), signature
        )
        return HiddenFile(Path(rows[0][0]), rows[0][1]) if rows else None

    def kept(self) -> list[tuple[Path, str]]:
        """Returns directory and SHA-256 of every kept content."""
        return [
            (Path(directory), signature) for directory, signature in self._read("SELECT directory, signature FROM kept")
        ]

    def keep_tree(self, row: TreeRow, entries: bytes) -> None:
        """Records an unpacked tree, or the new `entries` of a recorded tree.

        The tree then no longer counts as a part file."""
        hidden = os.fspath(row.hidden.path)
        values = (
            os.fspath(row.path),
            os.fspath(row.directory),
            row.signature,
            hidden,
            row.hidden.secret,
            row.uid,
            entries,
        )
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO trees VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            connection.execute("DELETE FROM hidden_files WHERE path = ?", (hidden,))

    def trees(self) -> list[TreeRow]:
        rows = self._read("SELECT path, directory, signature, hidden, secret, uid FROM trees ORDER BY path")
        return [
            TreeRow(Path(path), Path(directory), signature, HiddenFile(Path(hidden), secret), uid)
            for path, directory, signature, hidden, secret, uid in rows
        ]

    def tree(self, directory: Path, signature: str) -> TreeRow | None:
        return next((row for row in self.trees() if (row.directory, row.signature) == (directory, signature)), None)

    def entries_of(self, row: TreeRow) -> bytes:
        return bytes(self._read("SELECT entries FROM trees WHERE path = ?", os.fspath(row.path))[0][0])

    def disown_tree(self, row: TreeRow) -> None:
        with self._writing() as connection:
            connection.execute("UPDATE trees SET signature = '' WHERE path = ?", (os.fspath(row.path),))

    def drop_tree(self, row: TreeRow) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM trees WHERE path = ?", (os.fspath(row.path),))

    def part_opened(self, part: HiddenFile, content: Path) -> None:
        """Records a part file.

        The next transfer finds it by `content`, which identifies the target path and the content."""
        row = (os.fspath(part.path), self._now(), os.fspath(content), part.secret)
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO hidden_files VALUES (?, ?, ?, ?)", row)

    def part_closed(self, path: Path) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM hidden_files WHERE path = ?", (os.fspath(path),))

    def part(self, content: Path) -> HiddenFile | None:
        rows = self._read(
            "SELECT path, secret FROM hidden_files WHERE content = ? ORDER BY since DESC LIMIT 1", os.fspath(content)
        )
        return HiddenFile(Path(rows[0][0]), rows[0][1]) if rows else None

    def parts(self) -> list[tuple[HiddenFile, float]]:
        """Returns the part files and when each was last opened, oldest first."""
        rows = self._read("SELECT path, secret, since FROM hidden_files ORDER BY since")
        return [(HiddenFile(Path(path), secret), float(since)) for path, secret, since in rows]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._journal_error(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Runs one transaction, which is rolled back on any error."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._journal_error(error) from error
            finally:
                # ProgrammingError: the agent has closed the journal.
                with suppress(sqlite3.ProgrammingError):
                    if self._connection.in_transaction:
                        self._connection.rollback()

    def _journal_error(self, error: sqlite3.Error) -> JournalError:
        reason = f"the agent's journal {self._file} cannot be used: {error}"
        return JournalError(errno.ENOSPC if sqlite_code(error) == _FULL else errno.EIO, reason)
