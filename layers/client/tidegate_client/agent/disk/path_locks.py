from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PathLocks:
    """A lock for each path, so that one thread at a time changes it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}
        self._users: Counter[Path] = Counter()

    @contextmanager
    def hold(self, path: Path) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(path, threading.Lock())
            self._users[path] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path], self._locks[path]
