from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from defusedxml import ElementTree
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.utils import get_column_letter

from tidegate.sheets.rows import shaped
from tidegate.sheets.table import ROW_HEAD, SheetTable, keys_of, letters, parse_template
from tidegate.sheets.values import clean, escape
from tidegate.sheets.xlsx import TableRows, xlsx_chunks
from tidegate.sheets.xlsx_cells import Column, RowWriter

Render = Callable[..., Any]
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def column(render: Render, *values: Any) -> list[Any]:
    sheet = render(TableRows(SheetTable(), ["v"], [{"v": value} for value in values])).active
    return [row[0] for row in list(sheet.values)[1:]]


def test_json_numbers_are_numbers_and_strings_stay_text(render: Render) -> None:
    assert column(render, 1, -2, 3.5, 10**15 - 1) == [1, -2, 3.5, 10**15 - 1]
    assert column(render, "1", "007", "2026-11-16", "1e5") == ["1", "007", "2026-11-16", "1e5"]
    assert column(render, True, False, None, 1) == [True, False, None, 1]


def test_integers_past_15_digits_become_text(render: Render) -> None:
    big = [10**15, -(10**17), 440301199001011234]
    assert column(render, *big) == [str(number) for number in big]
    assert column(render, 1, big[2]) == [1, str(big[2])]


def test_string_never_becomes_a_formula(render: Render) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "{=A1}", "#N/A"]
    sheet = render(TableRows(SheetTable(title="=1+1"), ["=k"], [{"=k": text} for text in texts])).active

    cells = [row[0] for row in sheet.iter_rows()]
    assert [cell.data_type for cell in cells] == ["s"] * 8
    assert [cell.value for cell in cells] == ["=1+1", "=k", *texts]


def test_control_characters_are_dropped_and_white_space_kept(render: Render) -> None:
    assert column(render, "a\x00b\x0bc\x1f", "\ud800x\uffff", " edges ", "two\nlines\ttab") == [
        "abc",
        "x",
        " edges ",
        "two\nlines\ttab",
    ]


def test_markup_and_separators_stay_text(render: Render) -> None:
    texts = ["<b>&amp;</b>", "tick`tock", "a > b", "100%", "%s %d", "　全角　", "𝄞🎉"]
    assert column(render, *texts) == texts
    assert [column(render, text) for text in texts] == [[text] for text in texts]


def test_text_that_looks_like_an_escape_is_escaped() -> None:
    assert escape("_x0041_ & _x41_") == "_x005F_x0041_ &amp; _x41_"


def test_nested_values_and_odd_numbers_become_text(render: Render) -> None:
    assert column(render, {"甲": [1]}, [1, 2], float("inf"), float("nan")) == [
        '{"甲": [1]}',
        "[1, 2]",
        "Infinity",
        "NaN",
    ]
    assert column(render, 1.0, float("nan"))[1] == "NaN"


def test_long_text_is_cut_to_the_length_of_a_cell() -> None:
    assert len(clean("x" * 40_000)) == 32_767
    assert len(clean("🎉" * 20_000).encode("utf-16-le")) // 2 == 32_766


def test_rows_with_other_key_order_or_missing_keys_stay_aligned(render: Render) -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"b": "y", "a": 2}, {"b": "z"}]
    sheet = render(TableRows(SheetTable(), ["a", "b"], rows)).active
    assert list(sheet.values) == [("a", "b"), (1, "x"), (2, "y"), (None, "z")]


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**17), 10**17),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=6))
def test_block_equals_its_rows_written_one_by_one(rows: list[tuple[Any, Any]]) -> None:
    """Any column gives the same cells written as a block and row by row."""
    writer = RowWriter([Column("a", 1), Column("b", 2)])
    dicts = [{"a": a, "b": b} for a, b in rows]

    assert writer.xml(dicts, 7) == b"".join(writer.xml([row], at) for at, row in enumerate(dicts, 7))


@pytest.mark.parametrize(("text", "number"), [("1.50", 1.5), (" 7 ", 7), ("+3", 3), ("1e3", 1000), ("-0.5", -0.5)])
def test_type_number_converts_numeric_text(text: str, number: float) -> None:
    assert f"<v>{text.strip().lstrip('+')}</v>" in RowWriter([Column("a", 1, "number")]).xml([{"a": text}], 1).decode()
    assert float(text) == number


@pytest.mark.parametrize("text", ["1234567890123456", "1,000", "０", "1e999", ""])
def test_type_number_keeps_other_text(text: str) -> None:
    assert f"<t>{text}</t>" in RowWriter([Column("a", 1, "number")]).xml([{"a": text}], 1).decode()


def references(data: bytes) -> Iterator[tuple[str | None, list[str | None]]]:
    """The reference of each row of each sheet, and those of its cells."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    for name in archive.namelist():
        if name.startswith("xl/worksheets/"):
            for row in ElementTree.fromstring(archive.read(name)).iter(f"{MAIN}row"):
                yield row.get("r"), [cell.get("r") for cell in row.iter(f"{MAIN}c")]


HEADS = {"col": [{"name": "a", "style": {"wrap": True, "total": True}}, {"name": "b"}], "row": [{"name": "g"}]}
LAID_OUT = {
    "plain": SheetTable(),
    "texts": SheetTable(title="T", summary="s", header={"a": "b"}, footer={"x": "y"}, default_height=30),
    "totals": SheetTable(parse_template([{"name": "a", "style": {"total": True, "wrap": True}}, {"name": "b"}])),
    "row heads": SheetTable(parse_template(HEADS)),
}
VALUES: list[Any] = [None, 1, "text", "two\nlines", 2.5, True, "", " x", 10**17]


@pytest.mark.parametrize("name", LAID_OUT)
@pytest.mark.parametrize("multi_type", ["page", "tab"])
def test_every_row_and_cell_has_its_reference(name: str, multi_type: str) -> None:
    table = LAID_OUT[name]
    head = {ROW_HEAD: "g"} if table.template.rows else {}
    rows = [{"a": value, "b": other, **head} for value in VALUES for other in VALUES]
    tables = [TableRows(table, keys_of(rows), rows) for _ in range(2)]
    found = list(references(b"".join(xlsx_chunks(tables, multi_type=multi_type, sheet_rows=1000))))

    assert len(found) > 2 * len(rows)
    for row, cells in found:
        assert row
        assert cells == [f"{letters(at)}{row}" for at in range(1, len(cells) + 1)]
    numbers = [int(row or 0) for row, _ in found]
    first_sheet = len(numbers) if multi_type == "page" else len(numbers) // 2
    assert numbers[:first_sheet] == sorted(set(numbers[:first_sheet]))


def test_letters_are_those_of_openpyxl() -> None:
    assert [letters(at) for at in range(1, 16385)] == [get_column_letter(at) for at in range(1, 16385)]


def test_distinct_long_texts_are_not_kept_in_memory() -> None:
    """Of remarks with line breaks, and of a column that is mapped."""
    style = {"map": {"a": "b"}}
    shape = shaped(SheetTable(parse_template([{"name": "remark", "style": style}])))
    writer = RowWriter([Column("remark", 1)])

    tracemalloc.start()
    for number in range(500):
        writer.xml(shape([{"remark": f"{number}\n{'x' * 15_000}"}]), 1)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept < 1_000_000
