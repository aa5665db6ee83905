"""The request rate to a source's host."""

from __future__ import annotations

from collections import Counter
from threading import Lock

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tidegate.aws.host_usage import HostUsage
from tidegate.exports.source import Sources
from tidegate.http.host_limits import HostLimits


@pytest.fixture
def seconds(world: ExportWorld) -> Counter[int]:
    """Records the calls of each second; waiting advances the clock of the test."""
    calls, usage, at = Counter[int](), HostUsage(world.cloud.app.table, world.cloud.clock), [1_800_000_000.0]
    one_at_a_time = Lock()

    def sleep(wait: float) -> None:
        at[0] += wait

    class RecordingLimits(HostLimits):
        def call(self, address: str, patience: float) -> float:
            # One at a time: another thread's wait would move the clock before this call is counted.
            with one_at_a_time:
                waited = super().call(address, patience)
                calls[int(at[0])] += 1
            assert address.startswith((f"{world.project.id} 127.0.0.1", f"{world.project.id} localhost"))
            return waited

    source = world.cloud.app.exports.steps._puller._source
    assert isinstance(source, Sources)
    source._limits_of = lambda rate: RecordingLimits(usage.add, rate, clock=lambda: at[0], sleep=sleep)  # type: ignore[assignment]
    return calls


def test_requests_to_a_host_keep_to_its_rate(world: ExportWorld, seconds: Counter[int]) -> None:
    world.source.rows = numbered(2050)
    _, data = world.export(step=100, parallel=8, source_rate=3)
    assert len(read_csv(data)) == 2050
    # Each process may send one call beyond the shared limit; here all steps share one process.
    assert max(seconds.values()) <= 4
    assert sum(seconds.values()) == len(world.source.requests) == 21


def test_two_exports_of_a_project_share_the_rate(world: ExportWorld, seconds: Counter[int]) -> None:
    world.source.rows = numbered(1050)
    for _ in range(2):
        world.export(step=100, source_rate=2)
    assert max(seconds.values()) <= 3
    assert len(seconds) >= 22 / 3


def test_without_a_rate_nothing_is_counted(world: ExportWorld, seconds: Counter[int]) -> None:
    world.source.rows = numbered(250)
    world.export(step=100)
    assert not seconds


@pytest.mark.parametrize("rate", [0, -1, 1001, "fast"])
def test_rate_out_of_bounds_is_refused(world: ExportWorld, rate: object) -> None:
    assert world.post(source_rate=rate).status == 422
