"""The arithmetic of fetching a file in parts, and what is remembered between two invocations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.common.json_input import whole_number
from tidegate.http.model import MEGABYTE

PART_BYTES = 8 * MEGABYTE
MAX_PARTS = 10_000
MAX_BYTES = PART_BYTES * MAX_PARTS
# Below this, one stream is as fast as several.
PARALLEL_FROM = 4 * PART_BYTES

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Source:
    """What the first answer said of the file."""

    size: int | None
    etag: str | None
    ranges: bool

    @property
    def strong_etag(self) -> str | None:
        return self.etag if self.etag and not self.etag.startswith("W/") else None

    @property
    def parallel(self) -> bool:
        return self.ranges and self.size is not None and self.size >= PARALLEL_FROM


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A fetch that goes on in another invocation: all parts before `next_part` are stored."""

    upload_id: str
    next_part: int
    size: int
    etag: str | None

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def source_of(headers: Mapping[str, str]) -> Source:
    length = headers.get("content-length", "")
    encoded = headers.get("content-encoding", "identity") != "identity"
    ranges = headers.get("accept-ranges", "").strip().lower() == "bytes" and not encoded
    return Source(whole_number(length), headers.get("etag"), ranges)


def parts_of(size: int, first: int = 1) -> Iterator[tuple[int, int, int]]:
    """(number, first byte, last byte) of each part, from part `first` on."""
    for number in range(first, (size + PART_BYTES - 1) // PART_BYTES + 1):
        start = (number - 1) * PART_BYTES
        yield number, start, min(start + PART_BYTES, size) - 1


def starts_at(headers: Mapping[str, str]) -> int | None:
    """Where a 206 answer starts; None if it does not say."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    return whole_number(found[1]) if found else None


def staging_object(project_id: str, request_id: str, attempt: int) -> str:
    """Where content lies until it is whole and right; nobody but this attempt of its request knows it."""
    return f"staging/{project_id}/{request_id}/{attempt}"
