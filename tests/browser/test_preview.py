"""The preview merges cells like the Excel writer: both lay out the same templates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.console import Console
from tidegate.sheets.rows import gather
from tidegate.sheets.table import HeadCell, SheetTable, flat_rows, lay_out, parse_template

CELLS = """() => [...document.querySelectorAll(".sheet-head")].map(
  (cell) => [cell.textContent, cell.rowSpan, cell.colSpan])"""


def tree(chance: random.Random, depth: int) -> list[dict[str, Any]]:
    made = []
    for _ in range(chance.randint(1, 3)):
        name = f"n{chance.randrange(10**6)}"
        children = tree(chance, depth - 1) if depth > 1 and chance.random() < 0.6 else []
        made.append({"title": name.upper(), "name": name, "children": children})
    return made


def spans(cells: list[HeadCell]) -> list[list[Any]]:
    ordered = sorted(cells, key=lambda cell: (cell.row, cell.col))
    return [[cell.title, cell.height, cell.width] for cell in ordered]


def show(desk: Console, template: object, rows: object) -> None:
    desk.page.locator("textarea[name=source_data]").fill(json.dumps(rows))
    text = desk.page.locator("textarea[name=template]")
    if not text.is_visible():
        desk.page.get_by_text("As JSON").click()
    text.fill(json.dumps(template))


def test_preview_merges_columns_like_the_file(desk: Console) -> None:
    desk.go("exports/new")
    desk.page.locator(".sheet").wait_for()
    for seed in range(25):
        template = tree(random.Random(seed), 4)
        show(desk, template, [{}])
        assert desk.page.evaluate(CELLS) == spans(list(lay_out(SheetTable(parse_template(template))).head))


@pytest.mark.parametrize(
    "rows",
    [
        {"north": [{"q": 1}, {"q": 2}], "asia": [{"q": 3}]},
        {"north": [{"q": 1}] * 4, "south": [{"q": 2}]},
    ],
)
def test_preview_row_headings_span_rows_like_the_file(desk: Console, rows: dict[str, Any]) -> None:
    side = [{"title": "Europe", "children": [{"name": "north", "row_count": 2}, {"name": "south"}]}, {"name": "asia"}]
    template = {"col": [{"title": "Quarter", "children": [{"name": "q"}]}], "row": side}
    desk.go("exports/new")
    desk.page.locator(".sheet").wait_for()

    show(desk, template, rows)

    parsed = parse_template(template)
    layout = lay_out(SheetTable(parsed, title="Staff by team"))
    gathered = gather(parsed.rows, flat_rows(rows), top=layout.data_top)
    assert desk.page.evaluate(CELLS) == spans([*layout.head, *gathered.heads])
    expect(desk.page.locator(".sheet-cell")).to_have_count(gathered.count)
