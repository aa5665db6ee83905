"""Part files: kept for the next transfer of the same content, up to an age and a total size."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate_client.agent.journal import Journal, JournalError

log = logging.getLogger("tidegate.agent")


class Partials:
    def __init__(
        self,
        journal: Journal,
        *,
        seconds: float = 24 * 3600.0,
        most_bytes: int = 10 * 1024**3,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._now = now
        self._guard = threading.Lock()
        self._in_use: Counter[Path] = Counter()

    @contextlib.contextmanager
    def using(self, path: Path) -> Iterator[None]:
        """Protects a part file from the sweep. It is recorded before it is created: a crash leaves no unknown file."""
        with self._guard:
            self._in_use[path] += 1
        try:
            self._journal.part_opened(path)
            yield
        finally:
            with self._guard:
                self._in_use[path] -= 1
                if not self._in_use[path]:
                    del self._in_use[path]

    def remove_record(self, path: Path) -> None:
        """Removes the record of a part file that was renamed or deleted, unless another transfer creates it anew.
        If that fails, the sweep does it."""
        with self._guard, contextlib.suppress(JournalError):
            if self._in_use[path] <= 1:
                self._journal.part_closed(path)

    def sweep(self) -> int:
        """Removes part files that are too old, then the oldest until the rest fits. Returns how many."""
        now, removed = self._now(), 0
        kept: list[tuple[Path, int]] = []
        for path, since in self._journal.parts():
            size = _size(path)
            # A time in the future means that the clock was set back: treat the file as old.
            expired = size is None or not 0 <= now - since <= self._seconds
            if expired and self._remove(path):
                removed += 1
            else:
                kept.append((path, size or 0))
        total = sum(size for _, size in kept)
        for path, size in kept:
            if total <= self._most_bytes:
                break
            if self._remove(path):
                removed += 1
                total -= size
        return removed

    def total_bytes(self) -> int:
        return sum(_size(path) or 0 for path, _ in self._journal.parts())

    def _remove(self, path: Path) -> bool:
        with self._guard:
            if path in self._in_use:
                return False
            # The directory may belong to another user, who may have replaced it by a symlink.
            if path.parent.resolve() == path.parent:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    # Continue with the others; the next sweep tries this one again.
                    log.warning("the part file %s cannot be removed: %s", path, error)
                    return False
            self._journal.part_closed(path)
            return True


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None
