from __future__ import annotations

import csv
import io
import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.batches.model import RowSource
from tidegate.batches.rows.files import RowFiles
from tidegate.batches.rows.index import BLOCK_ROWS, CSV, NDJSON, RowIndex, format_of, index_rows, parse_block
from tidegate.errors import Invalid
from tidegate.files.model import content_object

cells = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs", "Cc"]) | st.sampled_from('",\n'),
    max_size=8,
)


class Memory:
    def __init__(self, **objects: bytes) -> None:
        self.objects = dict(objects)
        self.reads: list[tuple[int, int]] = []

    def chunks(self, key: str) -> Iterator[bytes]:
        data = self.objects[key]
        return (data[at : at + 7] for at in range(0, len(data), 7))

    def span(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((start, end))
        return self.objects[key][start:end]

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data


def wait_for_reads(memory: Memory, count: int) -> None:
    deadline = time.monotonic() + 5
    while len(memory.reads) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(memory.reads) == count


def all_rows(data: bytes, form: str, chunk: int = 5) -> list[Any]:
    index = index_rows((data[at : at + chunk] for at in range(0, len(data), chunk)), form)
    index = RowIndex.from_bytes(index.to_bytes())
    blocks = range(len(index.starts) - 1)
    rows = [row for block in blocks for row in parse_block(index, data[slice(*index.span(block))])]
    assert len(rows) == index.rows
    return rows


@given(st.lists(st.tuples(cells, cells), max_size=30), st.integers(1, 9), st.sampled_from(["\r\n", "\n"]))
def test_every_row_of_a_csv_is_found_whatever_it_holds(rows: list[tuple[str, str]], chunk: int, end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    assert all_rows(text.getvalue().encode(), CSV, chunk) == [{"a": a, "b": b} for a, b in rows]


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b" ", b"a", b"\xff"]), max_size=40).map(b"".join),
    st.integers(1, 9),
)
def test_as_many_rows_are_parsed_as_were_counted_whatever_the_bytes(data: bytes, chunk: int) -> None:
    for form in (CSV, NDJSON):
        assert all_rows(data, form, chunk) == all_rows(data, form, 1000)


def test_quotes_within_a_field_lose_no_row() -> None:
    data = b'id,name\n1,5" disk\n2,cable\n3,8" disk\n4,mouse\n'
    assert [row["name"] for row in all_rows(data, CSV)] == ['5" disk', "cable", '8" disk', "mouse"]


def test_a_line_of_spaces_is_no_row_and_costs_none() -> None:
    lines = [b"id", *(b"%d" % number for number in range(BLOCK_ROWS)), b"   ", b"last"]
    rows = all_rows(b"\n".join(lines), CSV, 1000)
    assert (len(rows), rows[-1]) == (BLOCK_ROWS + 1, {"id": "last"})
    assert all_rows(b'id\n""\n', CSV) == [{"id": ""}]


def test_lines_that_end_with_a_carriage_return_are_rows() -> None:
    assert all_rows(b"id\r1\r2\r", CSV) == [{"id": "1"}, {"id": "2"}]


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5)), max_size=30), st.integers(1, 9)
)
def test_every_line_of_ndjson_is_found(rows: list[dict[str, Any]], chunk: int) -> None:
    assert all_rows("\n".join(json.dumps(row) for row in rows).encode(), NDJSON, chunk) == rows


def test_blank_lines_a_byte_order_mark_and_ragged_rows_are_taken_as_they_are() -> None:
    data = b"\xef\xbb\xbfid,name\r\n\r\n1,a\r\n2\r\n3,c,extra\r\n\r\n"
    assert all_rows(data, CSV) == [{"id": "1", "name": "a"}, {"id": "2"}, {"id": "3", "name": "c", "_more": ["extra"]}]
    assert all_rows(b'{"a":1}\n\nnot json\n', NDJSON) == [{"a": 1}, "not json"]
    assert all_rows(b"", CSV) == []


def test_a_row_without_end_is_refused() -> None:
    with pytest.raises(Invalid):
        index_rows((b'"' + b"x" * 300_000 for _ in range(9)), CSV)


def test_rows_are_read_by_range_a_block_ahead_and_the_index_is_made_once() -> None:
    lines = [json.dumps({"n": number}).encode() for number in range(3 * BLOCK_ROWS + 10)]
    memory: Any = Memory(**{"content/p/sig": b"\n".join(lines)})
    source = RowSource("file-1", "sig", NDJSON)
    rows = RowFiles(memory, content_object).rows("p", source)
    assert [rows.row(number)["n"] for number in (0, 1, BLOCK_ROWS - 1)] == [0, 1, BLOCK_ROWS - 1]
    wait_for_reads(memory, 2)
    assert rows.row(3 * BLOCK_ROWS + 9) == {"n": 3 * BLOCK_ROWS + 9}
    wait_for_reads(memory, 3)
    memory.chunks = None
    assert RowFiles(memory, content_object).index("p", source).rows == 3 * BLOCK_ROWS + 10


def test_a_long_file_is_indexed_in_little_memory() -> None:
    line = b'{"a":"' + b"x" * 90 + b'"}\n'
    tracemalloc.start()
    index = index_rows((line * 1000 for _ in range(200)), NDJSON)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.rows == 200_000
    assert peak < 3_000_000


def test_formats_are_told_by_name() -> None:
    assert (format_of("A.CSV"), format_of("b.jsonl"), format_of("c.ndjson"), format_of("d.txt")) == (
        CSV,
        NDJSON,
        NDJSON,
        None,
    )
