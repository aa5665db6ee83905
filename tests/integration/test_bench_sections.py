"""Sections of `make bench` in their smallest size: the figures say nothing, but the bench cannot break unnoticed.

Those that need the deployed stack are in tests/e2e/test_bench_sections.py.
"""

from __future__ import annotations

import pytest

from tests.bench import bench_export, figures
from tests.bench.__main__ import ON_CLOUD, SECTIONS


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - ON_CLOUD.keys()))
def test_section_of_the_bench_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "smallest", True)
    for size, rows in (("SMALL", 100), ("MIDDLE", 200), ("BIG", 300)):
        monkeypatch.setattr(bench_export, size, rows)
    found = list(SECTIONS[name](True))
    assert found
    assert figures.table(found).count("\n") > len(found)
    wrong = [figure for figure in found if "wrong or missing" in figure.name and figure.value]
    assert wrong == []
