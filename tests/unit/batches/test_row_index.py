from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import idle_clock
from tidegate.batches import rows as rows_module
from tidegate.batches.model import RowSource, RowText
from tidegate.batches.rows import (
    BLOCK_ROWS,
    CSV,
    NDJSON,
    RangeIndex,
    RowFiles,
    Rows,
    first_rows,
    format_of,
    index_range,
    unpacked,
)
from tidegate.errors import Invalid, RecordNotFound
from tidegate.files.model import content_object
from tidegate.sheets.files import CsvOptions, CsvWriter

cells = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs", "Cc"]) | st.sampled_from('",\n'),
    max_size=8,
)


class Memory:
    def __init__(self, **objects: bytes) -> None:
        self.objects = dict(objects)
        self.chunk = 7
        self.reads: list[tuple[int, int]] = []
        self.streamed: list[tuple[int, int]] = []

    def chunks(self, key: str) -> Iterator[bytes]:
        return self.stream_span(key, 0, len(self.objects[key]))

    def stream_span(self, key: str, start: int, end: int) -> Iterator[bytes]:
        self.streamed.append((start, end))
        return (self.objects[key][at : min(at + self.chunk, end)] for at in range(start, end, self.chunk))

    def size(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None

    def span(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((start, end))
        return self.objects[key][start:end]

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def stream(self, key: str, portions: Iterable[bytes], _: str) -> None:
        self.objects[key] = b"".join(portions)


def wait_for_reads(memory: Memory, count: int) -> None:
    deadline = idle_clock() + 5
    while len(memory.reads) < count and idle_clock() < deadline:
        time.sleep(0.005)
    assert len(memory.reads) == count


def opened(data: bytes, form: str, range_bytes: int = 10**6, chunk: int = 5) -> tuple[Any, Rows]:
    memory: Any = Memory(**{"content/p/sig": data})
    memory.chunk = chunk
    files = RowFiles(memory, content_object, range_bytes=range_bytes)
    return memory, files.rows("p", RowSource("file-1", "sig", form))


def all_rows(data: bytes, form: str, chunk: int = 5, range_bytes: int = 10**6) -> list[Any]:
    _, rows = opened(data, form, range_bytes, chunk)
    return read_all(rows)


def read_all(rows: Rows) -> list[Any]:
    count, complete = rows.ensure_indexed(10**9)
    assert complete
    return [rows.row(number) for number in range(count)]


@given(st.lists(st.tuples(cells, cells), max_size=30), st.integers(1, 9), st.sampled_from(["\r\n", "\n"]))
def test_every_csv_row_is_found_whatever_its_content(rows: list[tuple[str, str]], chunk: int, end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    assert all_rows(text.getvalue().encode(), CSV, chunk) == [{"a": a, "b": b} for a, b in rows]


def rows_or_refusal(read: Callable[[], list[Any]]) -> list[Any] | str:
    """The rows; or why they are refused, as those with a header that names a column twice."""
    try:
        return read()
    except Invalid as error:
        return str(error)


@pytest.mark.parametrize("range_bytes", [1, 3, 10**6])
def test_byte_order_mark_is_not_part_of_the_first_ndjson_row(range_bytes: int) -> None:
    data = codecs.BOM_UTF8 + b'{"a": 1}\n{"a": 2}\n'
    assert all_rows(data, NDJSON, range_bytes=range_bytes) == [{"a": 1}, {"a": 2}]


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b" ", b"a", b"\xff"]), max_size=40).map(b"".join),
    st.integers(1, 9),
)
@pytest.mark.parametrize("form", [CSV, NDJSON])
def test_rows_do_not_depend_on_chunks_or_ranges(form: str, data: bytes, size: int) -> None:
    expected = rows_or_refusal(lambda: first_rows([data], RowText(form), 0, 10**6))
    assert rows_or_refusal(lambda: all_rows(data, form, size)) == expected
    assert rows_or_refusal(lambda: all_rows(data, form, 1000, range_bytes=size)) == expected


@given(
    st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"\r\n", b" ", b"a", b"bc"]), max_size=60).map(b"".join),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([CSV, NDJSON]),
)
def test_ranges_indexed_in_parallel_give_the_same_rows(data: bytes, size: int, indexers: int, form: str) -> None:
    _, rows = opened(data, form, size)

    def indexed_in_parallel() -> list[Any]:
        for indexer in reversed(range(indexers)):
            assert rows.index.index_ranges(indexer, indexers, lambda: True)
        return read_all(rows)

    assert rows_or_refusal(indexed_in_parallel) == rows_or_refusal(lambda: first_rows([data], RowText(form), 0, 10**6))


def test_quotes_inside_unquoted_fields_lose_no_rows() -> None:
    data = b'id,name\n1,5" disk\n2,cable\n3,8" disk\n4,mouse\n'
    assert [row["name"] for row in all_rows(data, CSV)] == ['5" disk', "cable", '8" disk', "mouse"]


def test_blank_line_is_not_a_row() -> None:
    lines = [b"id", *(b"%d" % number for number in range(BLOCK_ROWS)), b"   ", b"last"]
    rows = all_rows(b"\n".join(lines), CSV, 1000)
    assert (len(rows), rows[-1]) == (BLOCK_ROWS + 1, {"id": "last"})
    assert all_rows(b'id\n""\n', CSV) == [{"id": ""}]


def test_carriage_return_alone_ends_a_row() -> None:
    assert all_rows(b"id\r1\r2\r", CSV) == [{"id": "1"}, {"id": "2"}]


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5)), max_size=30), st.integers(1, 9)
)
def test_every_ndjson_line_is_found(rows: list[dict[str, Any]], chunk: int) -> None:
    assert all_rows("\n".join(json.dumps(row) for row in rows).encode(), NDJSON, chunk) == rows


def test_byte_order_mark_blank_lines_and_ragged_rows_are_accepted() -> None:
    data = b"\xef\xbb\xbfid,name\r\n\r\n1,a\r\n2\r\n3,c,extra\r\n\r\n"
    assert all_rows(data, CSV) == [{"id": "1", "name": "a"}, {"id": "2"}, {"id": "3", "name": "c", "_more": ["extra"]}]
    assert all_rows(b'{"a":1}\n\nnot json\n', NDJSON) == [{"a": 1}, "not json"]
    assert all_rows(b"", CSV) == []


def test_endless_row_is_refused() -> None:
    with pytest.raises(Invalid):
        index_range((b'"' + b"x" * 300_000 for _ in range(9)), RowText(CSV), 0, 10**7)


def test_next_block_of_rows_is_read_ahead() -> None:
    lines = [json.dumps({"n": number}).encode() for number in range(3 * BLOCK_ROWS + 10)]
    memory, rows = opened(b"\n".join(lines), NDJSON)
    rows.ensure_indexed(1)
    assert [rows.row(number)["n"] for number in (0, 1, BLOCK_ROWS - 1)] == [0, 1, BLOCK_ROWS - 1]
    wait_for_reads(memory, 2)
    assert rows.row(3 * BLOCK_ROWS + 9) == {"n": 3 * BLOCK_ROWS + 9}
    wait_for_reads(memory, 3)


def test_failed_read_ahead_is_repeated() -> None:
    memory, rows = opened(b'{"n":1}\n', NDJSON)
    rows.ensure_indexed(1)
    span, memory.span = memory.span, lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        rows.row(0)
    ahead = rows._block(0, 0)
    assert isinstance(ahead.exception(5), ZeroDivisionError)
    memory.span = span
    assert rows.row(0) == {"n": 1}


def test_range_that_begins_inside_quotes_is_indexed_again() -> None:
    data = b'id,text\n1,"a\n2,b\n3,c"\n4,d\n'
    memory, rows = opened(data, CSV, range_bytes=14)
    rows.index.index_ranges(1, 1, lambda: True)
    name = "rows/p/sig.csv-utf-8-44/14-0000001"
    assert RangeIndex.from_bytes(memory.objects[name]).first == data.index(b"3,c")
    assert [row["id"] for row in read_all(rows)] == ["1", "4"]
    assert RangeIndex.from_bytes(memory.objects[name]).first == data.index(b"4,d")


def test_new_process_indexes_only_missing_ranges() -> None:
    data = b"".join(b'{"n":%d}\n' % number for number in range(100, 1000))
    memory, rows = opened(data, NDJSON, range_bytes=100)
    permissions = iter([True] * 20)
    assert not rows.index.index_ranges(0, 2, lambda: next(permissions, False))
    rows.ensure_indexed(400)
    before = len(memory.streamed)
    again = RowFiles(memory, content_object, range_bytes=100).rows("p", RowSource("file-1", "sig", NDJSON))
    # Found in the list of ranges, without reading each of them.
    assert again.index.indexed[0] >= 330
    assert len(memory.streamed) == before
    assert [row["n"] for row in read_all(again)] == list(range(100, 1000))
    assert len({start for start, _ in memory.streamed}) == len(memory.streamed)


class EndlessFile(Memory):
    """100 GB with a billion rows, generated when they are read."""

    LINE = b'{"padding":"' + b"x" * 85 + b'"}\n'
    SIZE = 10**9 * len(LINE)

    def size(self, key: str) -> int | None:
        return self.SIZE if key.startswith("content/") else super().size(key)

    def stream_span(self, key: str, start: int, end: int) -> Iterator[bytes]:
        self.streamed.append((start, end))
        lines = self.LINE * 10_001
        return (
            lines[shift : shift + min(10**6, end - at)]
            for at in range(start, end, 10**6)
            for shift in [at % len(self.LINE)]
        )

    def span(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((start, end))
        shift = start % len(self.LINE)
        return (self.LINE * ((end - start) // len(self.LINE) + 2))[shift : shift + end - start]


def test_batch_of_a_billion_rows_starts_after_one_range() -> None:
    memory: Any = EndlessFile()
    rows = RowFiles(memory, content_object).rows("p", RowSource("file-1", "sig", NDJSON))
    known, complete = rows.ensure_indexed(1)
    assert (known > 300_000, complete) == (True, False)
    assert rows.row(0) == json.loads(EndlessFile.LINE)
    assert sum(end - start for start, end in memory.streamed + memory.reads) < 40 * 1024 * 1024
    # The other ranges are divided among the maximum number of functions.
    assert (rows.index.ranges, rows.indexers) == (2981, 16)


def test_runner_leaves_later_ranges_to_indexers() -> None:
    data = b"".join(b'{"n":%d}\n' % number for number in range(100, 1000))
    memory, rows = opened(data, NDJSON, range_bytes=100)
    assert rows.indexers > 0
    rows.ensure_indexed(1)
    before = len(memory.streamed)
    for _ in range(3):
        rows.look_ahead(5)
        time.sleep(0.02)
    assert len(memory.streamed) == before
    deadline = idle_clock() + 5
    while rows.look_ahead(40)[0] < 40:
        assert idle_clock() < deadline
        time.sleep(0.005)


def test_long_range_is_indexed_in_little_memory() -> None:
    line = b'{"a":"' + b"x" * 90 + b'"}\n'
    tracemalloc.start()
    index = index_range((line * 1000 for _ in range(200)), RowText(NDJSON), 0, 10**9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.rows == 200_000
    assert peak < 3_000_000


def test_format_is_found_by_file_name() -> None:
    assert (format_of("A.CSV"), format_of("b.jsonl"), format_of("c.ndjson"), format_of("d.txt")) == (
        CSV,
        NDJSON,
        NDJSON,
        None,
    )


def test_deleted_file_is_an_error_and_not_an_empty_file() -> None:
    memory: Any = Memory(**{"content/p/empty": b""})
    files = RowFiles(memory, content_object)
    assert files.rows("p", RowSource("file-2", "empty", NDJSON)).ensure_indexed(1) == (0, True)
    with pytest.raises(RecordNotFound, match="no longer in the library"):
        files.rows("p", RowSource("file-1", "sig", NDJSON))


def test_first_rows_after_many_are_read_in_little_memory() -> None:
    line = b'{"a":"' + b"x" * 90 + b'"}\n'
    tracemalloc.start()
    rows = first_rows((line * 1000 for _ in range(200)), RowText(NDJSON), 100_000, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 3
    assert peak < 3_000_000


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"id,name,id", r"line 1, columns 1 and 3\) names the column 'id' twice"),
        (b"id,,name,", r"line 1, columns 2 and 4\) has two columns without a name"),
    ],
)
def test_header_that_names_two_columns_alike_is_refused(header: bytes, why: str) -> None:
    data, form = header + b"\n1,Ann,77,x\n", RowText(CSV)
    for read in (lambda: first_rows([data], form, 0, 5), lambda: index_range([data], form, 0, len(data))):
        with pytest.raises(Invalid, match=why):
            read()
    assert first_rows([b"id,\n1,\n"], form, 0, 5) == [{"id": "1", "": ""}]


def test_header_of_many_columns_is_compared_once_for_each() -> None:
    """A row may have 500,000 of them: comparing each with all others would take hours."""
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    rows_module._header(Name(f"column {number}") for number in range(500))

    assert compared < 500


@pytest.mark.parametrize("form", [CSV, NDJSON])
def test_long_rows_are_read_one_by_one(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows of half a megabyte would not fit into a function."""
    monkeypatch.setattr(rows_module, "_LARGEST_BLOCK", 100_000, raising=False)
    texts = [f"{number} " + "x" * 10_000 for number in range(300)]
    lines = [f'"{text}"\n' + "\n" * (number % 2) for number, text in enumerate(texts)]
    data = "".join(["text\n" if form == CSV else "", *lines]).encode()
    _, rows = opened(data, form, range_bytes=10**7, chunk=50_000)
    rows.ensure_indexed(300)
    expected = [{"text": text} for text in texts] if form == CSV else texts
    tracemalloc.start()
    for number in (*range(300), 7):
        assert rows.row(number) == expected[number]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(data) / 3


ROWS = [
    {"编号": str(number), "名称": name}
    for number, name in enumerate(["海;运", 'a"b', "两\n行", "a|b\tc", " ", "", "丂狢,𠮷"] * 30)
]


def inspected(data: bytes, file_name: str = "rows.csv", **given: Any) -> tuple[Any, RowFiles, RowSource]:
    memory: Any = Memory(**{"content/p/sig": data})
    memory.chunk = 1000
    files = RowFiles(memory, content_object, range_bytes=100)
    source = RowSource("file-1", "sig", format_of(file_name) or "", **given)
    return memory, files, files.inspect("p", source, given.get("delimiter"))


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030"])
def test_exports_of_every_kind_can_be_sources(encoding: str, delimiter: str, compression: str | None) -> None:
    """With the options of the export; compression and byte order mark are found without them."""
    written = CsvWriter(
        ["编号", "名称"], CsvOptions(guard=False, delimiter=delimiter, encoding=encoding, line_end="\r\n")
    )
    data = written.head() + written.lines(ROWS)
    _, files, source = inspected(gzip.compress(data) if compression else data, encoding=encoding, delimiter=delimiter)
    assert source.compression == compression
    assert read_all(files.rows("p", source)) == ROWS
    assert files.first_rows("p", source, 1, 2) == ROWS[1:3]


@pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be"])
def test_text_with_byte_order_mark_is_read_as_that_says(mark: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["编号", "名称"], delimiter="\t")
    writer.writeheader()
    writer.writerows(ROWS)
    data = ("\ufeff" + text.getvalue()).encode(mark)
    memory, files, source = inspected(data, encoding="gb18030", delimiter="\t")
    assert source.encoding == "utf-16"
    assert read_all(files.rows("p", source)) == ROWS
    assert files.first_rows("p", source, 0, 1) == ROWS[:1]
    assert [key for key in memory.objects if key.endswith("/text")] == ["rows/p/sig.csv-utf-16-9/text"]


def test_text_in_another_encoding_is_refused_with_line_and_column() -> None:
    lines = ["id,name", *(f"{number},ok" for number in range(60)), "60,ok 集装箱", "61,ok"]
    data = "\r\n".join(lines).encode("gbk")
    refusal = "line 62, column 7 is not utf-8 text: give the file's `encoding` in source"
    for size in (7, 100, 10**6):
        for chunk in (1, 3, 1000):
            with pytest.raises(Invalid, match=refusal):
                all_rows(data, CSV, chunk, size)
    with pytest.raises(Invalid, match=refusal):
        first_rows([data], RowText(CSV), 0, 100)
    assert first_rows([data], RowText(CSV, "gbk"), 60, 1) == [{"id": "60", "name": "ok 集装箱"}]
    with pytest.raises(Invalid, match="line 2, column 6 is not utf-8"):
        inspected(b'{"a":1}\n{"b":\xc4\xe3}\n', "rows.jsonl")


def test_undecodable_utf16_is_refused_with_line_and_column() -> None:
    data = "id\n1\nab".encode("utf-16") + b"\x00\xdc" + "c".encode("utf-16-le")
    with pytest.raises(Invalid, match="line 3, column 3 is not utf-16 text"):
        inspected(data)


def test_header_without_the_delimiter_is_refused_unless_one_is_given() -> None:
    with pytest.raises(Invalid, match=r"one column, 'id;name': give the `delimiter` in source, ';' if it is that"):
        inspected(b"id;name\n1;a\n")
    _, files, source = inspected(b"id;name\n1;a\n", delimiter=",")
    assert read_all(files.rows("p", source)) == [{"id;name": "1;a"}]


def test_row_of_empty_cells_between_tabs_is_a_row() -> None:
    assert first_rows([b"a\tb\n\t\n1\t2\n\n"], RowText(CSV, delimiter="\t"), 0, 9) == [
        {"a": "", "b": ""},
        {"a": "1", "b": "2"},
    ]


def test_gzip_that_is_cut_or_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"id\n1\n") + gzip.compress(b"2\n") + bytes(20)
    assert b"".join(unpacked([packed[:9], packed[9:40], packed[40:]])) == b"id\n1\n2\n"
    with pytest.raises(Invalid, match="its end is missing"):
        list(unpacked([packed[:30]]))
    with pytest.raises(Invalid, match="cannot be read as gzip"):
        inspected(b"id\n1\n", compression="gzip")
    monkeypatch.setattr(rows_module, "MOST_UNPACKED", 10**6)
    with pytest.raises(Invalid, match="unpacks to more than 1,000,000 bytes"):
        list(unpacked([gzip.compress(bytes(10**7))]))
