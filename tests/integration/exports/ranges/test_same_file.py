"""A file made by several workers equals, byte for byte, one rendered from staged pages."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

import openpyxl
import pyarrow.parquet
import pytest
from python_calamine import CalamineWorkbook

from tests.integration.exports.test_fill import template
from tests.support.exports.fill import sheet_of
from tests.support.exports.paged_source import PagedSource, honest, numbered, without_total
from tests.support.exports.ranges import both_ways, by_cursor, read_text
from tests.support.exports.running import ExportWorld, read_sheet
from tests.support.exports.samples import mixed_rows
from tidegate.exports import pull as paging
from tidegate.exports import ranges as export_range_context
from tidegate.exports.store import plan_object
from tidegate.sheets import parquet as parquet_writer

ROWS = 2050


@pytest.mark.parametrize("parallel", [4, 12, 32])
@pytest.mark.parametrize("more", [{}, {"type": "jsonl"}, {"compression": "gzip", "template": {"id": "编号"}}])
def test_text_file_is_the_same_as_from_staged_pages(world: ExportWorld, more: Any, parallel: int) -> None:
    world.source.rows = list(mixed_rows(ROWS))
    joined, staged = both_ways(world, parallel=parallel, **more)
    if "compression" in more:
        joined, staged = gzip.decompress(joined), gzip.decompress(staged)
    assert joined == staged
    assert max(world.source.pages.values()) == 2, "once in each export"


@pytest.mark.parametrize("parallel", [4, 28])
def test_sheet_is_the_same_as_from_staged_pages(world: ExportWorld, parallel: int) -> None:
    world.source.rows = list(mixed_rows(ROWS))
    template = [{"name": key, "title": key, "style": {"total": key == "amount"}} for key in next(mixed_rows(1))]
    for more in ({}, {"title": "订单", "summary": "x<br>y", "footer": {"a": "b"}, "template": template}):
        joined, staged = both_ways(world, type="excel", parallel=parallel, **more)
        joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
        assert joined_zip.testzip() is None
        assert joined_zip.namelist() == staged_zip.namelist()
        for name in joined_zip.namelist():
            assert joined_zip.read(name) == staged_zip.read(name), name
        assert len(read_sheet(joined)) >= ROWS


def test_labelled_links_and_named_sheets_are_the_same_in_ranges(world: ExportWorld) -> None:
    world.source.rows = [
        {"url": f"https://shop.example/{row['id']}", "who": f'{row["name"]} & "co"', "plain": "https://a.example/"}
        for row in numbered(ROWS)
    ]
    template = [
        {"name": "url", "style": {"type": "link", "label_key": "who"}},
        {"name": "plain", "style": {"type": "link", "label": "打开"}},
    ]
    joined, staged = both_ways(world, type="excel", parallel=20, template=template, sheet_name="订单 2026")

    assert zipfile.ZipFile(io.BytesIO(joined)).read("xl/worksheets/sheet1.xml") == zipfile.ZipFile(
        io.BytesIO(staged)
    ).read("xl/worksheets/sheet1.xml")
    sheet = openpyxl.load_workbook(io.BytesIO(joined))["订单 2026"]
    assert [cell.value for cell in sheet[3]] == [
        '=HYPERLINK("https://shop.example/1","名字1 & ""co""")',
        '=HYPERLINK("https://a.example/","打开")',
    ]
    shown = CalamineWorkbook.from_filelike(io.BytesIO(joined)).get_sheet_by_name("订单 2026").to_python()
    assert (shown[2], len(shown)) == (['名字1 & "co"', "打开"], ROWS + 1)


def test_several_sheets_equal_those_of_one_writer(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.sheets import files
    from tidegate.sheets.xlsx import xlsx_chunks

    monkeypatch.setattr(export_range_context, "SHEET_ROWS", 730)
    monkeypatch.setattr(files, "xlsx_chunks", lambda tables, **more: xlsx_chunks(tables, sheet_rows=730, **more))
    world.source.rows = numbered(ROWS)
    joined, staged = both_ways(world, type="excel", title="T", footer="end", parallel=20)
    joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    sheets = [name for name in joined_zip.namelist() if name.startswith("xl/worksheets/")]
    assert len(sheets) == 3
    assert [joined_zip.read(name) for name in sheets] == [staged_zip.read(name) for name in sheets]
    assert [sheet.title for sheet in openpyxl.load_workbook(io.BytesIO(joined))] == ["T", "T 2", "T 3"]


@pytest.mark.parametrize("multi_type", ["page", "tab"])
@pytest.mark.parametrize("more", [{}, {"type": "excel"}, {"type": "jsonl"}, {"compression": "gzip"}, {"bom": True}])
def test_several_tables_are_the_same_as_from_staged_pages(world: ExportWorld, multi_type: str, more: Any) -> None:
    """Two pulled tables and a given one, each with its own texts."""
    world.source.rows = list(mixed_rows(1650))
    fields: dict[str, Any] = {
        "path": "/v1/task/multiple",
        "multi_type": multi_type,
        "source_url": [world.source.url, None, world.source.url],
        "source_data": [None, [{"a": 1, "b": "x"}, {"a": 2}], None],
        "title": ["一", "二", None],
        "sheet_name": ["First", None, "第三"],
        "footer": ["end", None, {"sum": "1"}],
        **more,
    }
    joined, staged = both_ways(world, parallel=12, **fields)
    if joined[:2] == b"PK":
        joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
        assert joined_zip.testzip() is None
        assert joined_zip.namelist() == staged_zip.namelist()
        for name in joined_zip.namelist():
            assert joined_zip.read(name) == staged_zip.read(name), name
    else:
        assert read_text(joined) == read_text(staged)
    assert max(world.source.pages.values()) == 4, "two tables, exported twice, each page read once"


def short_page(source: PagedSource, page: int, size: int) -> Any:
    """A source that leaves out rows of some pages, and counts them in its total."""
    answer = honest(source, page, size)
    if page in (3, 9):
        answer["data"]["data"] = answer["data"]["data"][: size - 17]
    return answer


@pytest.mark.parametrize("tables", [1, 3])
def test_row_numbers_are_right_after_short_pages(world: ExportWorld, tables: int) -> None:
    """The workers after a short page assume full ones; the joiner corrects their row numbers."""
    world.source.rows, world.source.answer = numbered(ROWS), short_page
    fields: dict[str, Any] = {}
    if tables > 1:
        fields = {"path": "/v1/task/multiple", "source_url": [world.source.url] * tables, "title": ["a"] * tables}
    joined, staged = both_ways(world, type="excel", parallel=12, **fields)
    assert max(world.source.pages.values()) == 2 * tables, "no page is read again"
    joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    assert joined_zip.testzip() is None
    for name in joined_zip.namelist():
        assert joined_zip.read(name) == staged_zip.read(name), name
    rows = list(openpyxl.load_workbook(io.BytesIO(joined)).worksheets[0].values)
    assert sum(isinstance(row[0], int) for row in rows) == tables * (ROWS - 2 * 17)


@pytest.mark.parametrize("answer", [honest, by_cursor])
def test_parquet_is_made_of_the_workers_row_groups(
    world: ExportWorld, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", 5000)
    world.source.rows, world.source.answer = numbered(ROWS), answer
    template = [{"name": "id", "style": {"type": "number"}}, {"name": "name"}, {"name": "amount"}]
    joined, staged = both_ways(world, type="parquet", template=template, parallel=12)
    rows = pyarrow.parquet.read_table(io.BytesIO(joined)).to_pylist()
    assert rows == pyarrow.parquet.read_table(io.BytesIO(staged)).to_pylist()
    assert [row["id"] for row in rows] == [float(number) for number in range(ROWS)]
    assert rows[1] == {"id": 1.0, "name": "名字1", "amount": "0.25"}


@pytest.mark.parametrize("answer", [by_cursor, without_total])
@pytest.mark.parametrize("more", [{}, {"type": "excel"}, {"type": "jsonl", "compression": "gzip"}])
def test_pages_without_total_make_the_same_file_as_staged_ones(world: ExportWorld, answer: Any, more: Any) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), answer
    joined, staged = both_ways(world, **more)
    assert max(world.source.pages.values()) == 2, "once in each export"
    if more.get("type") == "excel":
        assert read_sheet(joined) == read_sheet(staged)
    else:
        assert read_text(joined) == read_text(staged)
    assert not world.objects("staging")


def test_cursor_fills_several_sheets_exactly(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.sheets import files
    from tidegate.sheets.xlsx import xlsx_chunks

    monkeypatch.setattr(export_range_context, "SHEET_ROWS", 730)
    monkeypatch.setattr(files, "xlsx_chunks", lambda tables, **more: xlsx_chunks(tables, sheet_rows=730, **more))
    world.source.rows, world.source.answer = numbered(ROWS), by_cursor
    joined, staged = both_ways(world, type="excel", title="T", footer="end")
    joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    sheets = [name for name in joined_zip.namelist() if name.startswith("xl/worksheets/")]
    assert len(sheets) == 3
    assert [joined_zip.read(name) for name in sheets] == [staged_zip.read(name) for name in sheets]


@pytest.mark.parametrize("rows", [728, 729, 1456, 1457, ROWS])
def test_footer_with_the_last_page_needs_no_second_pull(
    world: ExportWorld, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Its row is kept free on every sheet: which one is the last is not known before."""
    from tidegate.sheets import files
    from tidegate.sheets.xlsx import xlsx_chunks

    def answer(source: PagedSource, page: int, size: int) -> Any:
        found = honest(source, page, size)
        if (page + 1) * size >= rows:
            found["data"]["footer"] = {"sum": "1"}
        return found

    monkeypatch.setattr(export_range_context, "SHEET_ROWS", 730)
    monkeypatch.setattr(paging, "MIN_PAGES", 2)
    monkeypatch.setattr(files, "xlsx_chunks", lambda tables, **more: xlsx_chunks(tables, sheet_rows=730, **more))
    world.source.rows, world.source.answer = numbered(rows), answer
    joined, staged = both_ways(world, type="excel")
    # Once for each of the two ways.
    assert max(world.source.pages.values()) == 2
    joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    assert {name: joined_zip.read(name) for name in joined_zip.namelist()} == {
        name: staged_zip.read(name) for name in staged_zip.namelist()
    }
    assert list(openpyxl.load_workbook(io.BytesIO(joined)).worksheets[-1].values)[-1][0] == "sum：1"


def test_equal_neighbours_of_different_ranges_are_merged(world: ExportWorld) -> None:
    world.source.rows = [{"shop": f"s{n // 700}", "n": n} for n in range(ROWS)]
    template = [{"name": "shop", "style": {"merge": True}}, {"name": "n"}]
    joined, staged = both_ways(world, type="excel", template=template, parallel=28)
    assert zipfile.ZipFile(io.BytesIO(joined)).read("xl/worksheets/sheet1.xml") == zipfile.ZipFile(
        io.BytesIO(staged)
    ).read("xl/worksheets/sheet1.xml")
    merged = openpyxl.load_workbook(io.BytesIO(joined)).worksheets[0].merged_cells.ranges
    assert {str(each) for each in merged} == {"A2:A701", "A702:A1401", "A1402:A2051"}


FILLED = {"A1": "{who}", "A3": "{.id}", "B3": "{.name}", "C3": "=A3*2", "A5": "=SUM(A3:A3)", "B5": "{sign}"}


def filled_file(world: ExportWorld, cells: dict[str, Any]) -> dict[str, Any]:
    return {"file_id": template(world, sheet_of(cells)), "values": {"who": "ACME"}}


@pytest.mark.parametrize(
    ("answer", "parallel", "lanes"),
    [(honest, 4, 1), (honest, 28, 7), (without_total, 4, 1), (without_total, 28, 1), (by_cursor, 28, 1)],
)
def test_filled_template_is_the_same_as_from_staged_pages(
    world: ExportWorld, answer: Any, parallel: int, lanes: int
) -> None:
    world.source.rows, world.source.answer = numbered(ROWS), answer
    fill = filled_file(world, FILLED)
    joined, staged = both_ways(world, type="excel", parallel=parallel, fill=fill, footer={"sign": "ok"})

    joined_zip, staged_zip = (zipfile.ZipFile(io.BytesIO(data)) for data in (joined, staged))
    assert joined_zip.testzip() is None
    assert joined_zip.namelist() == staged_zip.namelist()
    for name in joined_zip.namelist():
        assert joined_zip.read(name) == staged_zip.read(name), name
    found = read_sheet(joined)
    assert [row[0] for row in found[2 : 2 + ROWS]] == list(range(ROWS))
    assert found[-1][:2] == (f"=SUM(A3:A{2 + ROWS})", "ok")
    assert max(world.source.pages.values()) == 2, "once in each export: no range gave up"
    # A source without a total is read by one worker, page after page.
    assert len(world.stored_by_lane) == lanes
    assert all(world.stored_by_lane), "every worker stored rows"


def test_numbers_that_formulas_leave_out_are_warned_of_by_workers(world: ExportWorld) -> None:
    world.source.rows = [{"id": str(number), "name": "n"} for number in range(ROWS)]
    cells = {"A1": "{.id}", "B1": "{.name}", "A2": "=SUM(A1:A1)"}

    shown, _ = world.export(type="excel", step=100, parallel=28, fill=filled_file(world, cells))

    assert len(world.stored_by_lane) == 7
    assert [line for line in shown["warnings"] if "formulas leave out numbers of {.id} that are text" in line]


def test_filled_template_with_a_short_page_is_staged(world: ExportWorld) -> None:
    """Formulas of the rows after it contain row numbers, which cannot be corrected later."""
    world.source.rows = numbered(ROWS)

    def short(source: PagedSource, page: int, size: int) -> Any:
        answer = honest(source, page, size)
        if page == 5:
            answer["data"]["data"] = answer["data"]["data"][:-1]
        return answer

    world.source.answer = short
    shown, data = world.export(type="excel", step=100, parallel=12, fill=filled_file(world, FILLED))

    found = [row for row in read_sheet(data)[2:] if isinstance(row[0], int)]
    assert len(found) == ROWS - 1
    assert [row[2] for row in found] == [f"=A{number}*2" for number in range(3, ROWS + 2)]
    assert shown["status"] == "completed"


def test_plan_of_filled_template_is_refused_by_the_version_before(world: ExportWorld) -> None:
    """During a deployment, its workers would make a plain workbook of it; they read every other plan."""
    world.source.rows = numbered(ROWS)
    known = {"lanes", "threads", "tables"}
    fields: dict[str, Any] = {"fill": filled_file(world, FILLED)}
    for more, unknown in (fields, {"filled"}), ({}, set[str]()):
        task_id = world.submit(type="excel", step=100, parallel=28, **more)
        lane = world.cloud.invoke("pull_pages", world.admit(task_id))["lanes"][0]
        stored = world.cloud.app.exports.objects.get(plan_object(world.project.id, task_id))
        assert lane["plan"].keys() == json.loads(stored or b"").keys() == known | unknown
