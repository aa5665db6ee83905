"""The one reading of an uploaded object."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

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


def test_range_that_s3_cut_short_is_read_again() -> None:
    bucket: Any = CutShort(2)

    checked = verify.check(bucket, "k", StoredObject(len(CONTENT), "e"))

    assert checked.signature == hashlib.sha256(CONTENT).hexdigest()


def test_range_that_s3_always_cuts_is_no_content() -> None:
    bucket: Any = CutShort(1000)

    with pytest.raises(Busy):
        verify.check(bucket, "k", StoredObject(len(CONTENT), "e"))


def test_other_size_than_announced_is_a_fault() -> None:
    file = File("file-1", "prj-1", 1, 1, "/a", "a", PENDING, "2026-01-01T00:00:00.000Z", size=3)

    assert verify.fault_of(file, 4, "s") == "4 bytes came, 3 were announced"
    assert verify.fault_of(file, 3, "s") is None
