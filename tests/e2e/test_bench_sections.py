"""Sections of `make bench` that need the deployed stack, in their smallest size.

test_releases.py plays `releases_live`.
"""

from __future__ import annotations

import pytest

from tests.bench import figures
from tests.bench.__main__ import ON_CLOUD
from tests.support.console import CHROMIUM
from tests.support.deployed import Deployed


@pytest.mark.parametrize("name", sorted(ON_CLOUD.keys() - {"releases_live"}))
def test_section_of_the_bench_works(name: str, deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "first_paint" and CHROMIUM is None:
        pytest.skip("no Chromium here")
    monkeypatch.setattr(figures, "smallest", True)
    found = list(ON_CLOUD[name](deployed, True))
    assert found
    assert figures.table(found).count("\n") > len(found)
