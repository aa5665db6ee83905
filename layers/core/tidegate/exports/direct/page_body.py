"""The response body of a page, in the format of an HTTP source."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.exports.source_json import write_exact


def page_body(rows: Iterable[bytes], next_cursor: str | None, snapshot: str | None = None) -> bytes:
    """`rows` are encoded JSON objects."""
    return b'{"status":200,"data":{"data":[%b],"next":%b,"snapshot":%b}}' % (
        b",".join(rows),
        write_exact(next_cursor),
        write_exact(snapshot),
    )
