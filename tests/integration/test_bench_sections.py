"""Every section of `make bench` in its smallest size: the figures say nothing, but the bench cannot break unnoticed."""

from __future__ import annotations

import pytest

from tests.bench import bench_export, figures
from tests.bench.__main__ import SECTIONS
from tests.support.console import CHROMIUM


@pytest.mark.parametrize("name", SECTIONS)
def test_section_of_the_bench_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "smallest", True)
    for size, rows in (("SMALL", 100), ("MIDDLE", 200), ("BIG", 300)):
        monkeypatch.setattr(bench_export, size, rows)
    found = list(SECTIONS[name](True))
    assert found or (name == "first_paint" and CHROMIUM is None)
    assert figures.table(found).count("\n") > len(found)
