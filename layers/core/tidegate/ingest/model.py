"""Downloads in parts: the ranges of the parts, and whether two answers are of the same version of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from secrets import token_hex

from tidegate.common.json_input import read_date, whole_number
from tidegate.http.model import MEGABYTE

PART_BYTES = 8 * MEGABYTE
MAX_PARTS = 10_000
MAX_BYTES = PART_BYTES * MAX_PARTS
# Below this, one stream is as fast as several.
PARALLEL_FROM = 4 * PART_BYTES
# A file may change twice within one second of Last-Modified. RFC 9110 calls it reliable once it is a minute old.
_SETTLED_SECONDS = 60

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Source:
    """What the headers of the first answer say of a file."""

    size: int | None
    etag: str | None
    ranges: bool
    # Only if it is reliable enough to tell two versions apart.
    last_modified: str | None = None

    @property
    def strong_etag(self) -> str | None:
        return self.etag if self.etag and not self.etag.startswith("W/") else None

    @property
    def validated(self) -> bool:
        """Whether a later answer can be recognised as the same version."""
        return bool(self.strong_etag or self.last_modified)

    def in_parts(self, *, signed: bool) -> bool:
        """Whether the file may be fetched in ranges. `signed`: the SHA-256 of the whole file will be verified."""
        return self.ranges and self.size is not None and self.size >= PARALLEL_FROM and (self.validated or signed)

    def conditions(self) -> dict[str, str]:
        """Returns request headers that make the source refuse to send a part of another version."""
        if self.strong_etag:
            return {"if-match": self.strong_etag}
        return {"if-unmodified-since": self.last_modified} if self.last_modified else {}

    def is_same(self, headers: Mapping[str, str]) -> bool:
        """Whether an answer can be of this version of the file. Needed because not every server obeys `conditions`."""
        etag, changed = headers.get("etag"), headers.get("last-modified")
        size = total_of(headers)
        return (
            (not etag or not self.etag or etag.removeprefix("W/") == self.etag.removeprefix("W/"))
            and (not changed or not self.last_modified or changed == self.last_modified)
            and (size is None or size == self.size)
        )


def source_of(headers: Mapping[str, str]) -> Source:
    """Returns what the headers of the first answer say of a file."""
    length = headers.get("content-length", "")
    encoded = headers.get("content-encoding", "identity") != "identity"
    ranges = headers.get("accept-ranges", "").strip().lower() == "bytes" and not encoded
    changed = headers.get("last-modified")
    settled = changed if _is_settled(changed, headers.get("date")) else None
    return Source(whole_number(length), headers.get("etag"), ranges, settled)


def _is_settled(changed: str | None, date: str | None) -> bool:
    changed_at, sent_at = read_date(changed), read_date(date)
    if changed_at is None or sent_at is None:
        return False
    return (sent_at - changed_at).total_seconds() >= _SETTLED_SECONDS


def parts_of(size: int, first: int = 1) -> Iterator[tuple[int, int, int]]:
    """Yields (number, first byte, last byte) of each part, from part `first` on."""
    for number in range(first, part_count(size) + 1):
        start = (number - 1) * PART_BYTES
        yield number, start, min(start + PART_BYTES, size) - 1


def part_count(size: int) -> int:
    return (size + PART_BYTES - 1) // PART_BYTES


def range_of(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns (first byte, last byte) from the headers of a 206 answer. None if the headers do not have them."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    first, last = (whole_number(found[1]), whole_number(found[2])) if found else (None, None)
    return None if first is None or last is None else (first, last)


def total_of(headers: Mapping[str, str]) -> int | None:
    """Returns the size of the whole file from the headers of a 206 answer. None if the headers do not have it."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    return whole_number(found[3]) if found else None


def ingested_object(project_id: str, request_id: str) -> str:
    """Returns a new key for the object that one run writes. It is partly random, so a late run overwrites nothing."""
    return f"content/{project_id}/{request_id}-{token_hex(8)}"
