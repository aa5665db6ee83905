"""Verifying an uploaded object."""

from __future__ import annotations

import hashlib
import time
from typing import Any, cast

import pytest

from tests.support.template import functions
from tidegate.aws.s3 import StoredObject
from tidegate.errors import Busy
from tidegate.files import verify
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


def hashed_per_second(size: int) -> float:
    began = time.process_time()
    verify.check(cast(Any, Instant()), "k", StoredObject(size, "e"))
    return size / (time.process_time() - began)


def test_100_gb_are_verified_in_one_invocation() -> None:
    """Calculated from the rate of S3 connections, the function's share of a processor, and its memory."""
    function = functions()["IngestFunction"]
    needed = 100e9 / function["Timeout"]
    # AWS: an application can expect 85 to 90 MB/s of a connection to S3; the test assumes half of that.
    assert needed < verify.AHEAD * 45e6
    # Lambda gives a whole processor at 1,769 MB.
    share = function["MemorySize"] / 1769
    # The best of many tries: another process on the same core slows a single one.
    rates = (hashed_per_second(8 * verify.RANGE) for _ in range(60))
    # TLS and copying take as much again.
    assert any(rate * share / 2 > needed for rate in rates)
    assert function["MemorySize"] * 2**20 / 2 > verify.AHEAD * verify.RANGE
