"""Connections, bandwidth and delays of one fetch, in simulated time."""

from __future__ import annotations

from tidegate.ingest.fetch import Pacer, Politeness


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


def pacer(politeness: Politeness) -> tuple[Pacer, Time]:
    time = Time()
    return Pacer(politeness, time.wait, lambda: time.now), time


def test_without_politeness_nothing_waits() -> None:
    made, time = pacer(Politeness())
    for _ in range(100):
        made.before_request()
        made.after_bytes(10**9)
    assert time.now == 100.0


def test_requests_keep_their_delay_and_the_first_does_not_wait() -> None:
    made, time = pacer(Politeness(delay_s=3))
    started = []
    for _ in range(4):
        made.before_request()
        started.append(time.now)
    assert started == [100.0, 103.0, 106.0, 109.0]
    time.now += 60
    made.before_request()
    assert time.now == 169.0, "a source that rested long enough is asked at once"


def test_bandwidth_is_kept_over_any_ten_seconds() -> None:
    made, time = pacer(Politeness(bytes_per_s=1_000_000))
    sent = []
    for _ in range(400):
        made.after_bytes(65_536)
        sent.append((time.now, 65_536))
    for start in range(100, int(time.now) - 10):
        within = sum(count for at, count in sent if start <= at < start + 10)
        assert 9_500_000 <= within <= 10_500_000


def test_missing_fields_of_a_payload_are_no_limits() -> None:
    assert Politeness.from_payload({}) == Politeness()
    assert Politeness.from_payload({"politeness": {"connections": 1, "delay_s": 2}}) == Politeness(1, None, 2.0)
