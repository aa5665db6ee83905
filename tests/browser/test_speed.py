"""The overview's first paint with 10,000 records in the table."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.support.console import console, first_paint
from tests.support.console_seed import fill
from tests.support.deployed import Deployed

ROUNDS = 4


def test_overview_of_10_000_records_paints_fast(browser: Browser, deployed: Deployed) -> None:
    """Measures both in turns, so that other load of the machine slows both."""
    few, many = deployed.project(), deployed.project()
    fill(deployed, few.id, requests=120, jobs=60, files=60)
    fill(deployed, many.id, requests=4000, jobs=3000, files=3000)
    times: dict[str, list[float]] = {few.key: [], many.key: []}
    with console(browser, deployed) as opened:
        for _ in range(ROUNDS):
            for key, measured in times.items():
                measured.append(first_paint(opened, key))
    print("first paint, ms:", [[round(time) for time in measured] for measured in times.values()])
    # The first round has cold starts. About 1.6 times was measured with 100,000 records (bench: first_paint),
    # and 2.3 times with 10,000 while the emulator still sorted all of a list for each page of it.
    assert min(times[many.key]) < 2 * min(times[few.key]) + 100
