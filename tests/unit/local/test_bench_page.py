"""The page of measured figures: written by the bench section by section."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.bench.figures import Figure, page_rows, skipped, write_page

ORDER = ["first", "second", "third"]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text("# Figures\n\nWords.\n")
    return path


def test_sections_stand_in_order_whichever_ran_first(page: Path) -> None:
    for name in ("second", "third", "first"):
        write_page(page, name, "2026-11-18", [Figure("T", "row", 1)], ORDER)
    assert re.findall(r"^### (\w+)$", page.read_text(), re.MULTILINE) == ORDER
    assert page.read_text().startswith("# Figures\n\nWords.\n\n<!-- first -->\n")


def test_a_run_replaces_its_own_section_only(page: Path) -> None:
    write_page(page, "first", "2026-11-17", [Figure("T", "row", 1, "s")], ORDER)
    write_page(page, "second", "2026-11-17", [Figure("T", "row", 2, "s")], ORDER)
    before = page.read_text()
    write_page(page, "first", "2026-11-18", [Figure("T", "row", 3, "s", bar=2)], ORDER)
    assert page_rows(page) == {"first": {"row": "3 s"}, "second": {"row": "2 s"}}
    assert "2026-11-18" in page.read_text()
    write_page(page, "first", "2026-11-17", [Figure("T", "row", 1, "s")], ORDER)
    assert page.read_text() == before


def test_what_was_not_measured_is_named_and_holds_no_bar(page: Path) -> None:
    left_out = skipped("T", "aria2", "not installed")
    assert left_out.holds
    assert math.isnan(left_out.value)
    write_page(page, "first", "2026-11-18", [left_out], ORDER)
    assert "| aria2: not measured | – |  | not installed |" in page.read_text()
