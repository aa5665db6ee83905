"""Verifying an uploaded object."""

from __future__ import annotations

import hashlib
import time
from typing import Any, cast

import pytest

from tests.support.template import functions
from tidegate.aws.s3 import StoredObject
from tidegate.errors import Busy
from tidegate.files import reading as verify
from tidegate.files.model import PENDING, File

CONTENT = bytes(range(256)) * 8


class CutShort:
    """S3 that ends its first answers early, without an error."""

    def __init__(self, times: int) -> None:
        self.left = times

    def read_range(self, key: str, first: int, last: int, etag: str) -> bytes:
        self.left -= 1
        return CONTENT[first : last + 1][: 10 if self.left >= 0 else None]


def test_short_range_is_read_again() -> None:
    bucket: Any = CutShort(2)

    checked = verify.check(bucket, "k", StoredObject(len(CONTENT), "e"))

    assert checked.signature == hashlib.sha256(CONTENT).hexdigest()


def test_range_that_is_always_short_is_busy() -> None:
    bucket: Any = CutShort(1000)

    with pytest.raises(Busy):
        verify.check(bucket, "k", StoredObject(len(CONTENT), "e"))


def test_size_that_differs_from_the_announced_is_a_fault() -> None:
    file = File("file-1", "prj-1", 1, 1, "/a", "a", PENDING, "2026-01-01T00:00:00.000Z", size=3)

    assert verify.fault_of(file, 4, "s") == "the content has 4 bytes, but 3 were announced"
    assert verify.fault_of(file, 3, "s") is None


class Instant:
    """S3 that answers at once, so that only the time for hashing is measured."""

    def __init__(self) -> None:
        self.held = bytes(verify.RANGE)

    def read_range(self, key: str, first: int, last: int, etag: str) -> bytes:
        return self.held[: last - first + 1]


def seconds_of_check(size: int) -> float:
    began = time.process_time()
    verify.check(cast(Any, Instant()), "k", StoredObject(size, "e"))
    return time.process_time() - began


def seconds_of_three_digests(size: int) -> float:
    """Of the whole, its pieces and its blocks: what hashing alone takes."""
    content = bytes(verify.RANGE)
    began = time.process_time()
    for _ in range(3 * size // len(content)):
        hashlib.sha256(content).digest()
    return time.process_time() - began


def test_verification_takes_at_most_twice_the_time_of_its_digests() -> None:
    """With zeros, in which no block has a probe, so that every offset is tried. The best of some tries counts, because
    other work on the same core slows a single one."""
    size = 8 * verify.RANGE
    ratios = (seconds_of_check(size) / seconds_of_three_digests(size) for _ in range(20))
    assert any(ratio < 2 for ratio in ratios)


def test_ranges_in_flight_fit_memory_and_read_a_gigabyte_in_two_seconds() -> None:
    # AWS: an application can expect 85 to 90 MB/s of a connection to S3; the test assumes half of that.
    assert verify.AHEAD * 45e6 * 2 > 1e9
    assert functions()["IngestFunction"]["MemorySize"] * 2**20 / 2 > verify.AHEAD * verify.RANGE
