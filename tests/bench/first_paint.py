"""The console's first paint, from signing in to figures on the screen, with few records and with 100,000."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.figures import Figure, few
from tests.support.console import CHROMIUM, chromium, console, first_paint
from tests.support.console_seed import fill
from tests.support.deployed import Deployed

SECTION = "First paint of the console, Chromium on MiniStack"
ROUNDS = 5
FEW, MANY, MANY_IF_QUICK = 240, 100_000, 10_000
BAR = 1000


def measure(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    """Takes the best of some rounds: other work on the machine and the cold functions of the first only add time."""
    if CHROMIUM is None:
        return
    counts = (FEW, MANY_IF_QUICK if quick else MANY)[: few(100)]
    projects = {count: cloud.project() for count in counts}
    for count, project in projects.items():
        fill(cloud, project.id, requests=count * 4 // 10, jobs=count * 3 // 10, files=count * 3 // 10)
    with chromium() as browser, console(browser, cloud) as opened:
        times = {
            count: [first_paint(opened, project.key) for _ in range(few(ROUNDS))] for count, project in projects.items()
        }
    for count, measured in times.items():
        worst = f"slowest {max(measured):,.0f} ms, with cold functions"
        yield Figure(SECTION, f"{count:,} records", min(measured), "ms", BAR, note=worst)
