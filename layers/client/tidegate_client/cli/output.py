"""Output of the commands: aligned text for people, or JSON alone on stdout for scripts."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from tidegate_client.errors import ApiError


def width_of(text: str) -> int:
    """Width on a terminal in columns; East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list) and not value:
        return "-"
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        return ", ".join(_shown(one) for one in value)
    if isinstance(value, dict) and all(isinstance(one, int | float) for one in value.values()):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items() if number) or "-"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


class Output:
    def __init__(
        self, *, as_json: bool, fields: Sequence[str] = (), out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._fields = fields
        self.out = out or sys.stdout
        self.err = err or sys.stderr

    def record(self, record: Mapping[str, Any]) -> None:
        """Prints one record, a line for each field; for people, without the fields that have no value."""
        record = self._picked(record)
        if self.as_json:
            self._json(record, indent=2)
            return
        flat = {name: value for name, value in _flattened(record) if self._fields or value is not None}
        widest = max((len(name) for name in flat), default=0)
        for name, value in flat.items():
            self.line(f"{name:<{widest}}  {_shown(value)}")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], cursor: str | None = None) -> None:
        """Prints records as rows; `cursor` leads to the next page."""
        if self._fields:
            rows, columns = [self._picked(row) for row in rows], self._fields
        if self.as_json:
            self._json({"items": list(rows), "next_cursor": cursor}, indent=2)
            return
        cells = [[column.upper().replace("_", " ").replace(".", " ") for column in columns]]
        for row in rows:
            # Columns may name nested fields, as in progress.total.
            flat = {**dict(_flattened(row)), **row}
            cells.append([_shown(flat.get(column)) for column in columns])
        widths = [max(width_of(line[at]) for line in cells) for at in range(len(columns))]
        for line in cells:
            padded = (text + " " * (width - width_of(text)) for text, width in zip(line, widths, strict=True))
            self.line("  ".join(padded).rstrip())
        if cursor:
            self.note(f"there are more: continue with --cursor {cursor}, or print all with --all")

    def _picked(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record with the fields of --fields only; nested fields are named as in progress.bytes."""
        if not self._fields:
            return record
        flat = {**record, **dict(_flattened(record))}
        return {name: flat.get(name) for name in self._fields}

    def event(self, record: Mapping[str, Any], text: str) -> None:
        """Prints one event of a stream: a JSON line, or `text`."""
        if self.as_json:
            self._json(record)
        else:
            self.line(text)

    def line(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Prints a hint for people on stderr; nothing with --json."""
        if not self.as_json:
            print(text, file=self.err, flush=True)

    def error(self, error: Exception) -> None:
        """Prints an error on stderr, with the details that the API gave."""
        if self.as_json:
            problem: dict[str, Any] = {"error": type(error).__name__, "detail": str(error)}
            if isinstance(error, ApiError):
                problem |= {"detail": error.detail, "code": error.code, "status": error.status, "errors": error.errors}
                problem |= {"request_id": error.request_id, "retry_after": error.retry_after}
            print(self._dumped(problem), file=self.err)
            return
        print(f"tidegate: {error}", file=self.err)
        if isinstance(error, ApiError) and error.retry_after is not None:
            print(f"  try again in {error.retry_after:.0f} s", file=self.err)
        if isinstance(error, ApiError) and error.request_id and error.status >= 500:
            print(f"  request id in the server's logs: {error.request_id}", file=self.err)
        for fault in error.errors if isinstance(error, ApiError) else ():
            where = ".".join(str(part) for part in fault.get("loc", ()))
            print(f"  {where}: {fault.get('msg')}", file=self.err)

    def _json(self, value: Any, indent: int | None = None) -> None:
        print(self._dumped(value, indent), file=self.out, flush=True)

    def _dumped(self, value: Any, indent: int | None = None) -> str:
        """JSON that any reader understands: where stdout is not UTF-8, other characters are escaped as JSON does."""
        encoding = (getattr(self.out, "encoding", None) or "utf-8").lower().replace("_", "-")
        return json.dumps(value, ensure_ascii=encoding not in ("utf-8", "utf8"), indent=indent)


def _flattened(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
