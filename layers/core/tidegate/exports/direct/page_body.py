"""A page in the words of a source's answer."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.exports.source_json import write_exact


def page_body(rows: Iterable[bytes], following: str | None, snapshot: str | None = None) -> bytes:
    """`rows` are JSON objects as they stand in the page; `following` is the cursor of the next page."""
    return b'{"status":200,"data":{"data":[%b],"next":%b,"snapshot":%b}}' % (
        b",".join(rows),
        write_exact(following),
        write_exact(snapshot),
    )
