"""Output of the command: tables and records for people, JSON for scripts, progress, logs."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from tidegate_client.errors import CONTROLS, ApiError, printable, without_queries

# --- output
# Output of the commands: aligned text for people, or JSON alone on stdout for scripts.


def width_of(text: str) -> int:
    """Returns the width of a text in terminal columns; East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _cell_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)) and not value:
        return "-"
    if isinstance(value, list) and not any(isinstance(one, (dict, list)) for one in value):
        return ", ".join(_cell_text(one) for one in value)
    if isinstance(value, dict) and all(isinstance(one, (int, float)) for one in value.values()):
        return ", ".join(f"{printable(name)} {_cell_text(number)}" for name, number in value.items() if number) or "-"
    if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
        return ", ".join(printable(f"{name}={text}") for name, text in value.items())
    if isinstance(value, (dict, list)):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


class Output:
    """Prints aligned text for people, or with --json nothing but JSON on stdout."""

    def __init__(
        self, *, as_json: bool, fields: Sequence[str] = (), out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._fields = fields
        self.out = out or sys.stdout
        self.err = err or sys.stderr

    def record(self, record: Mapping[str, Any]) -> None:
        """Prints one record: a line for each field, then a table for each list of records in it.

        Without --json, fields that have no value are left out."""
        record = self._picked(record)
        if self.as_json:
            self._json(record, indent=2)
            return
        flat = {name: value for name, value in _flattened(record) if self._fields or value not in (None, [], {})}
        tables = {name: value for name, value in flat.items() if _is_table(value)}
        widest = max((len(name) for name in flat if name not in tables), default=0)
        for name, value in flat.items():
            if name not in tables:
                self.line(f"{name:<{widest}}  {_cell_text(value)}")
        for name, rows in tables.items():
            known = [{key: value for key, value in _flattened(row) if value not in (None, "", [])} for row in rows]
            self.line(f"\n{name}")
            self._aligned(known, list(dict.fromkeys(key for row in known for key in row)), "  ")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], cursor: str | None = None) -> None:
        """Prints records as rows, and how to get the next page if there is a `cursor`."""
        if self._fields:
            rows, columns = [self._picked(row) for row in rows], self._fields
        if self.as_json:
            self._json({"items": list(rows), "next_cursor": cursor}, indent=2)
            return
        self._aligned(rows, columns)
        if cursor:
            self.note(f"there are more: continue with --cursor {cursor}, or print all with --all")

    def _aligned(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], indent: str = "") -> None:
        cells = [[column.upper().replace("_", " ").replace(".", " ") for column in columns]]
        for row in rows:
            # Columns may name nested fields, as in progress.total.
            flat = {**dict(_flattened(row)), **row}
            cells.append([_cell_text(flat.get(column)) for column in columns])
        widths = [max(width_of(line[at]) for line in cells) for at in range(len(columns))]
        for line in cells:
            padded = (text + " " * (width - width_of(text)) for text, width in zip(line, widths))
            self.line(indent + "  ".join(padded).rstrip())

    def _picked(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields of the record that --fields names; nested fields are written as progress.bytes."""
        if not self._fields:
            return record
        flat = {**record, **dict(_flattened(record))}
        return {name: flat.get(name) for name in self._fields}

    def event(self, record: Mapping[str, Any], text: str) -> None:
        """Prints one event of a stream: the record as a JSON line with --json, else `text`."""
        if self.as_json:
            self._json(record)
        else:
            self.line(text)

    def line(self, text: str) -> None:
        print(printable(text, keep="\n\t"), file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Prints a hint for people on stderr; nothing with --json."""
        if not self.as_json:
            print(printable(text, keep="\n\t"), file=self.err, flush=True)

    def error(self, error: Exception) -> None:
        """Prints an error on stderr, with the details that the API gave."""
        if self.as_json:
            problem: dict[str, Any] = {"error": type(error).__name__, "detail": str(error)}
            if isinstance(error, ApiError):
                problem |= {"detail": error.detail, "code": error.code, "status": error.status, "errors": error.errors}
                problem |= {"request_id": error.request_id, "retry_after": error.retry_after}
            print(self._dumped(problem), file=self.err)
            return
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print("tidegate:", printable(text, keep="\n"), file=self.err)
        if isinstance(error, ApiError) and error.retry_after is not None:
            print(f"  try again in {error.retry_after:.0f} s", file=self.err)
        if isinstance(error, ApiError) and error.request_id and error.status >= 500:
            print(f"  request id in the server's logs: {error.request_id}", file=self.err)
        for fault in error.errors if isinstance(error, ApiError) else ():
            where = ".".join(str(part) for part in fault.get("loc", ()))
            print(printable(f"  {where}: {fault.get('msg')}"), file=self.err)

    def _json(self, value: Any, indent: int | None = None) -> None:
        print(self._dumped(value, indent), file=self.out, flush=True)

    def _dumped(self, value: Any, indent: int | None = None) -> str:
        """Returns JSON that is safe on a terminal: control characters are escaped.

        If stdout is not UTF-8, all characters outside ASCII are escaped too."""
        encoding = (getattr(self.out, "encoding", None) or "utf-8").lower().replace("_", "-")
        text = json.dumps(value, ensure_ascii=encoding not in ("utf-8", "utf8"), indent=indent)
        return CONTROLS.sub(lambda one: one[0] if one[0] == "\n" else f"\\u{ord(one[0]):04x}", text)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _flattened(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{prefix}{printable(name)}.")
        else:
            yield f"{prefix}{printable(name)}", value


# --- progress
# Progress: a bar on a terminal, otherwise a line every few seconds.

REDRAW_SECONDS = 0.1
LINE_SECONDS = 5.0
BAR_CELLS = 24
ERASE = "\r\x1b[2K"


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bar(share: float) -> str:
    filled = round(max(0.0, min(1.0, share)) * BAR_CELLS)
    return "█" * filled + "░" * (BAR_CELLS - filled)


class Live:
    """Status lines that are redrawn in place on a terminal, and printed every few seconds elsewhere."""

    def __init__(self, output: Output, *, now: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO = output.err
        self._silent = output.as_json
        self._terminal = self._stream.isatty()
        self._now = now
        self._drawn_at = float("-inf")
        self._text = ""
        # Lines above the one with the cursor that the next drawing replaces.
        self._above = 0

    def holds(self, count: int) -> bool:
        """Returns whether this many lines can be redrawn in place."""
        return self._terminal and count < shutil.get_terminal_size().lines

    def show(self, text: str, *, important: bool = False) -> None:
        """Shows the text as the status. `important`: a change of state, which is shown at once."""
        every = REDRAW_SECONDS if self._terminal else LINE_SECONDS
        text = printable(text, keep="\n")
        if self._silent or text == self._text or (not important and self._now() - self._drawn_at < every):
            return
        self._drawn_at, self._text = self._now(), text
        if not self._terminal:
            print(text, file=self._stream, flush=True)
            return
        lines = [_fitted(line) for line in text.split("\n")]
        up = f"\x1b[{self._above}A" if self._above else ""
        self._above = len(lines) - 1
        print(up + "\n".join(f"{ERASE}{line}" for line in lines), end="", file=self._stream, flush=True)

    def print_line(self, text: str) -> None:
        """Prints a line that stays, above the status line."""
        if not self._silent:
            text = printable(text)
            print(f"{ERASE}{text}" if self._terminal else text, file=self._stream, flush=True)
            self._text = ""

    def close(self) -> None:
        if self._terminal and self._text and not self._silent:
            print(file=self._stream, flush=True)


def _fitted(text: str) -> str:
    room = shutil.get_terminal_size().columns - 1
    while width_of(text) > room:
        text = text[:-1]
    return text


class Speed:
    """Measures bytes a second over the last 30 seconds, so that estimates follow changes of speed."""

    _SECONDS = 30.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, done: int | None) -> float | None:
        """Notes that `done` bytes have arrived. Returns the speed; None while the speed is unknown."""
        if done is None:
            return None
        if self._seen and done < self._seen[-1][1]:
            # The download started again.
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if done > before and now > since else None


class ByteBar:
    """Shows the progress of an upload or download. Call it with the number of bytes done and the total."""

    def __init__(self, output: Output, label: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._live = Live(output, now=now)
        self._label = label
        self._now = now
        self._speed = Speed()

    def __call__(self, done: int, total: int | None) -> None:
        speed = self._speed.at(self._now(), done)
        amount = human_bytes(done)
        if total:
            amount = f"{bar(done / total)} {done * 100 // total:3d} %  {amount} of {human_bytes(total)}"
        left = f"  {human_seconds((total - done) / speed)} left" if speed and total and done < total else ""
        pace = f"  {human_bytes(speed)}/s" if speed else ""
        self._live.show(f"{self._label}  {amount}{pace}{left}", important=done == total)

    def close(self) -> None:
        self._live.close()


def log_to_stderr(logger_name: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger(logger_name)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


class TextLines(logging.Formatter):
    """Formats log records as text, without the queries of URLs, which may be secrets.

    Line breaks in a message are escaped; the lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return without_queries(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return printable(super().formatException(ei), keep="\n").replace("\n", "\n    ")


class JsonLines(logging.Formatter):
    """Formats log records as one JSON object a line; a traceback is one of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = without_queries(record.getMessage())
        line = {"time": moment, "level": record.levelname, "thread": record.threadName, "message": message}
        if record.exc_info:
            line["error"] = without_queries(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
