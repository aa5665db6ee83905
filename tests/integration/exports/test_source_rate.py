"""The request rate to a source's host."""

from __future__ import annotations

from functools import cache
from threading import Lock

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld, read_csv
from tidegate.aws.host_usage import HostUsage
from tidegate.errors import NotSent
from tidegate.exports.source import SourcePace


class Calls(list[float]):
    """When requests were sent; waiting advances the clock of the test."""

    def __init__(self, usage: HostUsage) -> None:
        self.usage, self.now, self.one_at_a_time = usage, 1_800_000_000.95, Lock()

    def sleep(self, wait: float) -> None:
        self.now += wait

    def most_in_a_second(self) -> int:
        return max(sum(begin <= each < begin + 0.999 for each in self) for begin in self)

    def process(self, rate: int) -> SourcePace:
        """The pace of one process."""
        calls = self

        class Recording(SourcePace):
            def wait(self, address: str, patience: float) -> float:
                # One at a time: another thread's wait would move the clock before this call is recorded.
                with calls.one_at_a_time:
                    waited = super().wait(address, patience)
                    calls.append(calls.now)
                return waited

        return Recording(self.usage, rate, clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def calls(world: ExportWorld) -> Calls:
    made = Calls(HostUsage(world.cloud.app.table, world.cloud.clock))
    world.cloud.app.exports.pace_of = cache(made.process)
    return made


def test_requests_to_a_host_keep_to_its_rate(world: ExportWorld, calls: Calls) -> None:
    world.source.rows = numbered(2050)
    _, data = world.export(step=100, parallel=8, source_rate=3)
    assert len(read_csv(data)) == 2050
    assert calls.most_in_a_second() == 3
    assert len(calls) == len(world.source.requests) == 21


@pytest.mark.parametrize("rate", [1, 5, 12, 95, 1000])
def test_processes_together_keep_to_the_rate_in_any_second(calls: Calls, rate: int) -> None:
    processes = [calls.process(rate) for _ in range(7)]
    began, count = calls.now, min(300, 3 * rate)
    for number in range(count):
        # Each has four requests in flight.
        processes[number // 4 % 7].wait("p-1 host", 60)
    assert calls.most_in_a_second() <= rate
    assert calls.now - began <= count / rate + 0.1


def test_call_beyond_the_patience_takes_no_slot(calls: Calls) -> None:
    first, second = calls.process(1), calls.process(1)
    for _ in range(3):
        first.wait("p-1 host", 60)
    calls.now -= 2.5
    for _ in range(3):
        with pytest.raises(NotSent, match="host already gets 1 calls per second"):
            second.wait("p-1 host", 1)
    assert second.wait("p-1 host", 60) <= 3.5


def test_two_exports_of_a_project_share_the_rate(world: ExportWorld, calls: Calls) -> None:
    world.source.rows = numbered(1050)
    for _ in range(2):
        world.export(step=100, source_rate=2)
    assert calls.most_in_a_second() == 2
    assert calls[-1] - calls[0] >= 10.4


def test_without_a_rate_nothing_is_counted(world: ExportWorld, calls: Calls) -> None:
    world.source.rows = numbered(250)
    world.export(step=100)
    assert not calls


@pytest.mark.parametrize("rate", [0, -1, 1001, "fast"])
def test_rate_out_of_bounds_is_refused(world: ExportWorld, rate: object) -> None:
    assert world.post(source_rate=rate).status == 422
