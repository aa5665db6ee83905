"""Log lines of a slice: gathered by its workers, written by a separate thread.

So a slow write of log lines does not delay the saves of the progress, a stop or the renewal of the lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aws_lambda_powertools import Logger

from tidegate.batches.model import LogLine
from tidegate.common.slices import slices

logger = Logger(service="tidegate", child=True)

MOST_LINES_WAITING = 5000
_PORTION = 25
_WRITERS = 4
_EVERY = 0.5


class LogLines:
    def __init__(self, make: Callable[[str, str, int | None], LogLine]) -> None:
        """`make` returns a line from level, message and index."""
        self._make = make
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._dropped = 0

    def add(self, index: int | None, messages: Sequence[tuple[str, str]]) -> None:
        """Adds (level, message) pairs. Drops and counts lines while too many wait to be written."""
        lines = [self._make(level, message, index) for level, message in messages]
        with self._lock:
            if len(self._lines) > MOST_LINES_WAITING:
                self._dropped += len(lines)
            else:
                self._lines += lines

    def drain(self) -> list[LogLine]:
        with self._lock:
            lines, self._lines = self._lines, []
            dropped, self._dropped = self._dropped, 0
        if dropped:
            lines.append(self._make("warning", f"{dropped} log lines came too fast and were dropped", None))
        return lines

    def put_back(self, lines: list[LogLine]) -> None:
        with self._lock:
            self._lines = lines + self._lines


class LogWriter:
    def __init__(self, lines: LogLines, write: Callable[[Sequence[LogLine]], None]) -> None:
        self._lines = lines
        self._write = write
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Writes the remaining lines, for at most `seconds`."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="log") as pool:
            while not self._closing.wait(_EVERY):
                self._flush(pool)
            for _ in range(3):
                if self._flush(pool):
                    return
                time.sleep(_EVERY)

    def _flush(self, pool: ThreadPoolExecutor) -> bool:
        lines = self._lines.drain()
        portions = list(slices(lines, _PORTION))
        unwritten: list[LogLine] = []
        for portion, written in zip(portions, [pool.submit(self._write, portion) for portion in portions], strict=True):
            try:
                written.result()
            except Exception:
                logger.exception("log lines of a batch could not be written and are retried")
                unwritten += portion
        if unwritten:
            self._lines.put_back(unwritten)
        return not unwritten
