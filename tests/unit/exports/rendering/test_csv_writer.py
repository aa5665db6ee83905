from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.exports.samples import mixed_rows
from tidegate.sheets.files import CsvOptions, CsvWriter, text_chunks
from tidegate.sheets.table import flat_rows, keys_of
from tidegate.sheets.values import MARK, SEPARATORS, guard, guard_all


def text(rows: list[dict[str, Any]], **options: Any) -> str:
    titles = options.pop("titles", None)
    return b"".join(text_chunks(CsvWriter(keys_of(rows), CsvOptions(**options), titles), rows)).decode()


def test_head_line_has_the_keys_and_rows_follow_them() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"b": "y", "a": 2.5}, {"c": None, "a": True}]
    assert text(rows) == "a,b,c\n1,x,\n2.5,y,\ntrue,,\n"


def test_special_characters_are_quoted_as_rfc_4180_says() -> None:
    row = {"a": 'say "hi"', "b": "x,y", "c": "two\nlines", "d": "lone\rcr", "e": " plain "}
    assert text([row], header="none") == '"say ""hi""","x,y","two\nlines","lone\rcr", plain \n'


def test_empty_cell_of_a_single_column_is_a_record() -> None:
    assert text([{"a": ""}, {"a": None}, {"a": "=x"}, {"a": ""}]) == 'a\n""\n""\n\'=x\n""\n'


def test_bom_and_head_line_follow_the_options() -> None:
    row = [{"a": 1, "b": 2}]
    assert b"".join(text_chunks(CsvWriter(["a", "b"], CsvOptions(bom=True)), row)).startswith(b"\xef\xbb\xbfa,b\n")
    assert text(row, header="titles", titles={"a": "甲"}) == "甲,b\n1,2\n"
    assert text(row, header="none") == "1,2\n"
    assert text([]) == ""


# Nearly a number, a phone number or a sign.
LOOKALIKES = ["--", "-1-1", "+1-1", "-1,23,4", "-5a", "+86 138 0013 8000+A1", "+86 1380013800|A", "-=1", "-%", "+(1)"]


@pytest.mark.parametrize("bad", ["=1+1", "+a", "-a", "@a", "\ta", "\ra", '=HYPERLINK("x")', "-1,-2", *LOOKALIKES])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_formula_injection_is_guarded_in_any_column(bad: str, column: int) -> None:
    row = dict.fromkeys("abc", "ok") | {"abc"[column]: bad}
    harmless = [{"a": "ok", "b": -5, "c": "-5.5e3"}] * 3

    read = list(csv.DictReader(io.StringIO(text([*harmless, row, *harmless]), newline="")))
    assert read[3]["abc"[column]] == f"'{bad}"
    assert read[2] == {"a": "ok", "b": "-5", "c": "-5.5e3"}
    assert text([row], guard=False).count("'") == 0


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("x;=1+1", "x;'=1+1"),
        ("x\t@SUM(A1)", "x\t'@SUM(A1)"),
        ("x\n=1+1", "x\n'=1+1"),
        ('x;"=1+1"', 'x;"\'=1+1"'),
        ("x;\x00=1", "x;\x00'=1"),
        ("x;＝1+1", "x;'＝1+1"),
        ("x;-1+cmd|' /C calc'!A0", "x;'-1+cmd|' /C calc'!A0"),
        ("=a;=b", "'=a;'=b"),
        ("\n=1+1", "'\n'=1+1"),
        ("\x00=1+1", "'\x00=1+1"),
        ("\ufeff=1+1", "'\ufeff=1+1"),
        ("＝1+1", "'＝1+1"),
        ("＋1", "'＋1"),
        ("－1", "'－1"),
        ("＠a", "'＠a"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("column", [0, 1])
def test_formulas_of_other_locales_and_readers_are_guarded(value: str, written: str, column: int) -> None:
    row = dict.fromkeys("ab", "ok") | {"ab"[column]: value}

    read = list(csv.DictReader(io.StringIO(text([{"a": "x", "b": "y"}, row]), newline="")))
    assert read[1]["ab"[column]] == written
    assert text([{"a": 1, "b": None}, row]).endswith(text([row], header="none")), "in a mixed column too"
    assert "'=" not in text([row], guard=False)


@pytest.mark.parametrize(
    "value",
    [
        "-12.5",
        "+4912345",
        "a;b",
        "a; -b",
        "1;-2;+3.5",
        "x;-5",
        "two\nlines",
        "a=b;c=d",
        "note: -",
        "x,=1+1",
        "",
        "-1e5",
        "-",
        "+",
        "－",
        "-1,234.50",
        "+1,234,567",
        "-1.234,50",
        "-12.5%",
        "-12,5 %",
        "- 5",
        "-$1,234.50",
        "-￥12",
        "+86 13800138000",
        "+86 138 0013 8000",
        "+8613800138000",
        "+86-755-8888-8888",
        "+1 (415) 555-2671",
        "+1(415)5552671",
        "a;-1,234.50;-",
        "x;+86 138 0013 8000",
    ],
)
def test_ordinary_values_are_not_changed(value: str) -> None:
    (row,) = csv.DictReader(io.StringIO(text([{"a": value, "b": "y"}]), newline=""))
    assert row["a"] == value


def test_text_within_nested_values_is_guarded_and_stays_json() -> None:
    (row,) = csv.DictReader(io.StringIO(text([{"a": ["x;=1+1"]}])))
    assert json.loads(row["a"]) == ["x;'=1+1"]


@given(st.lists(st.text("=+-@ 1,.%$x;\t\r\n\"'()\x00\x1e＝", max_size=12), min_size=1, max_size=8))
def test_guard_of_many_texts_is_that_of_each(texts: list[str]) -> None:
    for separators in (SEPARATORS, f"{SEPARATORS},|"):
        unmarked = [each.replace(MARK, "") for each in texts]
        joined = "".join(f"{MARK}{each}" for each in unmarked)
        assert guard_all(joined, separators).split(MARK)[1:] == [guard(each, separators) for each in unmarked]
        column = text([{"a": each, "b": 1} for each in texts], header="none", delimiter="|")
        assert [row[0] for row in csv.reader(io.StringIO(column, newline=""), delimiter="|")] == [
            guard(each, f"{SEPARATORS},|") for each in texts
        ]


@pytest.mark.parametrize("text", ["+" + "1 " * 20_000 + "x", "-" + "1," * 20_000, "-" + "1.000" * 9000 + "x"])
def test_guard_takes_linear_time(text: str) -> None:
    began = time.process_time()
    assert guard(text) == f"'{text}"
    assert time.process_time() - began < 1


def test_file_that_begins_with_id_is_no_sylk_file() -> None:
    """Excel reads a file that begins with ID as SYLK, and refuses it."""
    assert text([{"ID": "ID1", "b": "ID2"}]) == '"ID",b\nID1,ID2\n'
    assert text([{"a": "ID1", "b": "ID2"}], header="none") == '"ID1",ID2\n'
    assert text([{"a": 1}], header="titles", titles={"a": 'IDs, "all"'}).startswith('"IDs, ""all"""\n')


def test_keys_are_guarded_too() -> None:
    assert text([{"=a": 1}]) == "'=a\n1\n"


def test_grouped_data_adds_its_row_head() -> None:
    rows = flat_rows({"front": [{"a": 1}], "back": [{"a": 2}]})
    assert text(rows) == "a,_row_head_\n1,front\n2,back\n"


def test_nested_values_are_json() -> None:
    (row,) = csv.DictReader(io.StringIO(text([{"a": {"甲": [1, None]}, "b": False}])))
    assert json.loads(row["a"]) == {"甲": [1, None]}
    assert row["b"] == "false"


def test_lone_surrogates_do_not_stop_the_file() -> None:
    assert text([{"a": "x\ud800"}]) == "a\nx?\n"


def test_long_mixed_file_reads_back_complete() -> None:
    rows = list(mixed_rows(1234))
    read = list(csv.DictReader(io.StringIO(text(rows), newline="")))
    assert read == [{key: guard(v) if isinstance(v, str) else str(v) for key, v in row.items()} for row in rows]


cells = st.one_of(st.none(), st.integers(), st.text(alphabet=st.sampled_from("=+-@＝\t\r\n\x00;,\" 'a1."), max_size=5))


@settings(max_examples=300)
@given(st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), min_size=1, max_size=5))
def test_any_cells_read_back_guarded(rows: list[dict[str, Any]]) -> None:
    read = list(csv.reader(io.StringIO(text(rows, header="none"), newline="")))
    by_key = [[row[key] for key in keys_of(rows)] for row in rows]
    assert read == [[guard(v) if isinstance(v, str) else "" if v is None else str(v) for v in row] for row in by_key]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(alphabet="=+-@;,\t\r\n\"' a1\x00\ufeff＝" + MARK, max_size=5) | st.none(), min_size=1, max_size=8),
    st.sampled_from([",", ";", "\t"]),
    st.booleans(),
)
def test_texts_that_repeat_are_written_as_those_that_do_not(
    texts: list[str | None], delimiter: str, guarded: bool
) -> None:
    rows = [{"a": each, "b": 1} for each in texts]
    options = {"header": "none", "delimiter": delimiter, "guard": guarded}
    assert text(rows * 3, **options) == "".join(text([row], **options) for row in rows) * 3
