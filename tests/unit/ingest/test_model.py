"""Parts of files, and the properties of a source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.ingest.model import MAX_BYTES, MAX_PARTS, PART_BYTES, parts_of, range_of, source_of


@given(st.integers(1, MAX_BYTES), st.integers(0, 3))
def test_parts_cover_a_file_once_and_in_order(size: int, skipped: int) -> None:
    size = size % (20 * PART_BYTES) + 1
    parts = list(parts_of(size, 1 + skipped))
    expected = min(size, skipped * PART_BYTES)
    for number, first, last in parts:
        assert first == expected == (number - 1) * PART_BYTES
        assert 0 < last + 1 - first <= PART_BYTES
        expected = last + 1
    assert expected == size
    assert len(parts) <= MAX_PARTS


def test_first_answer_gives_size_etag_and_ranges() -> None:
    source = source_of({"content-length": str(PART_BYTES * 9), "accept-ranges": "bytes", "etag": 'W/"1"'})
    assert source.in_parts(signed=True)
    assert not source.in_parts(signed=False), "a weak ETag does not say that bytes are the same"
    assert source.strong_etag is None, "a weak ETag does not promise equal bytes"
    assert not source_of({"content-length": "99999999999", "etag": '"1"'}).in_parts(signed=True)
    assert not source_of({"accept-ranges": "bytes", "content-encoding": "gzip"}).ranges
    assert source_of({}).size is None


def test_where_a_part_starts_and_ends() -> None:
    assert range_of({"content-range": "bytes 5-9/10"}) == (5, 9)
    assert range_of({"content-range": "bytes */10"}) is None
    assert range_of({}) is None
