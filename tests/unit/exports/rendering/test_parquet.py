"""Parquet files, read by other libraries."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.exports.samples import mixed_rows, with_nulls
from tidegate.errors import BadTable
from tidegate.sheets import parquet as parquet_writer
from tidegate.sheets.parquet import parquet_chunks
from tidegate.sheets.table import Notes, SheetTable, keys_of, parse_template
from tidegate.sheets.values import read_exact, write_exact


def write_parquet(rows: list[dict[str, Any]], table: SheetTable | None = None, keys: list[str] | None = None) -> bytes:
    return b"".join(parquet_chunks(table or SheetTable(), keys or keys_of(rows), rows))


def read(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    return rows


def as_text(row: dict[str, Any]) -> dict[str, str | None]:
    return {key: None if value is None else str(value) for key, value in row.items()}


@pytest.mark.parametrize("group", [1, 20_000, 16 * 2**20])
def test_every_row_reads_back_for_any_group_size(group: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", group)
    rows = list(with_nulls(mixed_rows(2345)))
    data = write_parquet(rows)
    assert read(data) == [as_text(row) for row in rows]
    path = tmp_path / "rows.parquet"
    path.write_bytes(data)
    shown = duckdb.connect().execute(f"select id, count(*) over () from '{path}'").fetchall()
    assert shown == [(as_text(row)["id"], len(rows)) for row in rows]


def test_booleans_and_blanks_fill_a_group_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", 10_000)
    template = parse_template([{"name": "sure", "style": {"type": "boolean"}}, {"name": "blank"}])
    rows: list[dict[str, Any]] = [{"sure": n % 3 == 0, "blank": None} for n in range(30_000)]
    data = write_parquet(rows, SheetTable(template), ["sure", "blank"])
    assert read(data) == rows
    groups = pyarrow.parquet.ParquetFile(io.BytesIO(data)).metadata.num_row_groups
    assert groups >= 9, "a group holds 10,000 bytes, and each row has three"


def test_template_types_become_parquet_types() -> None:
    kinds = ["number", "currency", "percent", "date", "datetime", "boolean", "string", "link"]
    table = SheetTable(parse_template([{"name": kind, "style": {"type": kind}} for kind in kinds]))
    row = {
        "number": 7,
        "currency": "12.50",
        "percent": "12.5%",
        "date": "2026-11-16",
        "datetime": "2026-11-16T20:30:05.25+08:00",
        "boolean": True,
        "string": 100,
        "link": "https://x/",
    }
    rows = [row, dict.fromkeys(kinds), {**row, "boolean": "no"}]
    first, second, third = read(write_parquet(rows, table))
    assert first == {
        "number": 7.0,
        "currency": 12.5,
        "percent": 0.125,
        "date": date(2026, 11, 16),
        "datetime": datetime(2026, 11, 16, 20, 30, 5, 250_000),
        "boolean": True,
        "string": "100",
        "link": "https://x/",
    }
    assert set(second.values()) == {None}
    assert third["boolean"] is False


def test_decimals_keep_their_digits_as_text() -> None:
    rows = read_exact('[{"a": 100.00, "b": 12345678901234567.89, "c": [1.50], "d": 99999999999999999999}]')
    assert read(write_parquet(rows)) == [
        {"a": "100.00", "b": "12345678901234567.89", "c": "[1.50]", "d": "99999999999999999999"}
    ]


def test_parquet_without_rows_has_its_columns() -> None:
    assert pyarrow.parquet.read_table(io.BytesIO(write_parquet([], keys=["a", "b"]))).column_names == ["a", "b"]


CELLS = st.none() | st.text(max_size=20) | st.integers() | st.booleans()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS}), min_size=1, max_size=40))
def test_any_parquet_reads_back_equal(rows: list[dict[str, Any]]) -> None:
    def text(value: Any) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        return value if value is None else str(value).encode(errors="replace").decode()

    assert read(write_parquet(rows)) == [{key: text(value) for key, value in row.items()} for row in rows]


EXACT_38 = Context(prec=38)
EXACT = parse_template(
    [{"name": "n", "style": {"type": "integer"}}, {"name": "d", "style": {"type": "decimal", "scale": 4}}]
)


def test_integers_and_decimals_keep_their_digits_in_both_readers(tmp_path: Any) -> None:
    numbers: list[Any] = [9_007_199_254_740_993, -(2**63), 2**63 - 1, "12", "-7", None, 3]
    amounts: list[Any] = ["0.1000", "-1234567890123456789012345678901234.5678", 12, "1e3", "7.00000", None, "0"]
    text = write_exact([{"n": number, "d": amount} for number, amount in zip(numbers, amounts, strict=True)])
    notes = Notes()
    data = b"".join(parquet_chunks(SheetTable(EXACT), ["n", "d"], read_exact(text), notes))

    schema = pyarrow.parquet.read_schema(io.BytesIO(data))
    assert [str(field.type) for field in schema] == ["int64", "decimal128(38, 4)"]
    expected = [
        {
            "n": None if n is None else int(n),
            "d": None if d is None else Decimal(d).quantize(Decimal("0.0001"), context=EXACT_38),
        }
        for n, d in zip(numbers, amounts, strict=True)
    ]
    assert read(data) == expected
    path = tmp_path / "exact.parquet"
    path.write_bytes(data)
    found = duckdb.sql(f"SELECT n, d FROM '{path}'")
    assert found is not None
    assert found.fetchall() == [(row["n"], row["d"]) for row in expected]
    assert not notes.refused_values


def test_percent_is_the_double_nearest_to_its_text() -> None:
    table = SheetTable(parse_template([{"name": "a", "style": {"type": "percent"}}]))
    texts = ["0.7%", "7%", "0.29%", "1e-400%", "-12.5 %"]

    found = read(write_parquet([{"a": text} for text in texts], table))

    assert [row["a"] for row in found] == [0.007, 0.07, 0.0029, 0.0, -0.125]


@pytest.mark.parametrize("kind", ["number", "currency", "percent"])
def test_number_that_no_double_holds_is_left_out_not_infinite(kind: str) -> None:
    table, notes = SheetTable(parse_template([{"name": "n", "style": {"type": kind}}])), Notes()
    rows = read_exact(b'[{"n": 1e400}, {"n": "-1e999"}, {"n": "1e308"}, {"n": "1e400%"}, {"n": 5e-324}]')
    data = b"".join(parquet_chunks(table, ["n"], rows, notes))
    assert [row["n"] for row in read(data)] == [None, None, 1e308, None, 5e-324]
    assert notes.refused_values == 3


def test_values_that_do_not_fit_integer_or_decimal_are_left_out() -> None:
    bad: list[tuple[Any, Any]] = [(2**63, "0.00001"), ("1.5", "x"), (True, 10**34), ("1e999999", "1e-999999999")]
    notes = Notes()
    rows = [{"n": number, "d": amount} for number, amount in bad]
    data = b"".join(parquet_chunks(SheetTable(EXACT), ["n", "d"], rows, notes))
    assert read(data) == [{"n": None, "d": None}] * 4
    assert notes.refused_values == 8


@pytest.mark.parametrize("scale", [-1, 19, "2", True])
def test_scale_outside_its_range_is_refused(scale: Any) -> None:
    with pytest.raises(BadTable, match="0 to 18"):
        parse_template([{"name": "d", "style": {"type": "decimal", "scale": scale}}])
