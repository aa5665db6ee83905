"""The operator's limits on what goes to one address, over all processes that share a counter."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.support.http_servers import Handler, serve
from tidegate.errors import NotSent
from tidegate.http.client import SafeHttp
from tidegate.http.connections import HostLimits, counted_address
from tidegate.http.model import Limits

LIMITS = Limits(connect=0.3, total=1)


class Counters:
    """The counters in DynamoDB, and how often they were asked."""

    def __init__(self) -> None:
        self.used: dict[tuple[str, str, int], int] = defaultdict(int)
        self.asked: Counter[str] = Counter()
        self.broken = False
        self._lock = threading.Lock()

    def __call__(self, address: str, kind: str, window: int, amount: int) -> int:
        with self._lock:
            self.asked[kind] += 1
            if self.broken:
                raise RuntimeError("the table does not answer")
            self.used[address, kind, window] += amount
            return self.used[address, kind, window]


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def counters() -> Counters:
    return Counters()


def processes(number: int, counters: Counters, clock: Time, calls: int = 0, connections: int = 0) -> list[HostLimits]:
    return [HostLimits(counters, calls, connections, clock, clock.sleep) for _ in range(number)]


def made(limits: HostLimits, address: str = "192.0.2.1") -> int:
    """How many calls are allowed before one would have to wait."""
    count = 0
    while True:
        try:
            limits.call(address, 0.0)
        except NotSent:
            return count
        count += 1


def opened(limits: HostLimits, address: str = "192.0.2.1") -> int:
    count = 0
    while True:
        try:
            limits.connect(address, 0.0)
        except NotSent:
            return count
        count += 1


def test_processes_together_stay_within_the_limit_each_second(counters: Counters) -> None:
    clock = Time()
    crowd = processes(20, counters, clock, calls=2000)
    for _ in range(3):
        total = sum(made(one) for one in crowd)
        assert 2000 <= total <= 2000 + 20 * 5
        clock.now += 1


def test_process_that_is_alone_gets_the_whole_limit(counters: Counters) -> None:
    assert made(processes(1, counters, Time(), calls=2000)[0]) == 2000


def test_low_traffic_costs_no_aws_call(counters: Counters) -> None:
    clock = Time()
    limits = processes(1, counters, clock, calls=2000, connections=2000)[0]
    for _ in range(100):
        limits.connect("192.0.2.1", 0.0)
        for _ in range(5):
            assert limits.call("192.0.2.1", 0.0) < 0.1
        limits.disconnect("192.0.2.1")
        clock.now += 1
    assert not counters.asked


def test_busy_process_asks_about_once_a_block(counters: Counters) -> None:
    clock = Time()
    limits = processes(1, counters, clock, calls=2000)[0]
    for _ in range(10):
        for _ in range(500):
            limits.call("192.0.2.1", 0.0)
        clock.now += 1
    assert counters.asked["calls"] <= 10 * 5 + 60


def test_call_over_the_limit_waits_for_the_next_second(counters: Counters) -> None:
    clock = Time()
    limits = processes(1, counters, clock, calls=100)[0]
    for _ in range(250):
        limits.call("192.0.2.1", 5.0)
    assert 1_000_002 <= clock.now < 1_000_003


def test_addresses_have_limits_of_their_own(counters: Counters) -> None:
    limits = processes(1, counters, Time(), calls=100)[0]
    assert (made(limits, "192.0.2.1"), made(limits, "192.0.2.2")) == (100, 100)


def test_addresses_of_one_ipv6_network_are_one_host() -> None:
    assert counted_address("2a00:1450::1") == counted_address("2a00:1450::ffff:1") != counted_address("2a00:1451::1")


def test_counter_that_does_not_answer_leaves_the_free_allowance(counters: Counters) -> None:
    clock = Time()
    counters.broken = True
    limits = processes(1, counters, clock, calls=2000)[0]
    assert made(limits) == 5
    counters.broken = False
    clock.now += 1
    assert made(limits) == 2000


def test_connections_of_all_processes_stay_within_the_limit(counters: Counters) -> None:
    clock = Time()
    crowd = processes(10, counters, clock, connections=400)
    total = sum(opened(one) for one in crowd)
    assert 300 <= total <= 400 + 10 * 4
    for _ in range(4):
        clock.now += 10
        for one in crowd:
            one.call("192.0.2.1", 0.0)
        assert sum(opened(one) for one in crowd) <= 400 + 10 * 4 - total


def test_closed_connection_makes_room(counters: Counters) -> None:
    limits = processes(1, counters, Time(), connections=100)[0]
    count = opened(limits)
    limits.disconnect("192.0.2.1")
    limits.disconnect("192.0.2.1")
    assert (count, opened(limits)) == (100, 2)


def test_connections_of_a_process_that_died_are_free_again_after_two_windows(counters: Counters) -> None:
    clock = Time()
    dead, alive = processes(2, counters, clock, connections=100)
    assert opened(dead) == 100
    assert opened(alive) <= 1
    clock.now += 20
    assert opened(alive) >= 98


@pytest.fixture
def site() -> Iterator[tuple[str, list[float]]]:
    moments: list[float] = []

    def route(request: Handler) -> None:
        moments.append(time.monotonic())
        request.body()
        request.answer(200, b"{}")

    with serve(route) as port:
        yield f"http://127.0.0.1:{port}/", moments


def by_line(http: SafeHttp, url: str) -> Callable[[], object]:
    line = http.line(url, allow_private=True)
    return lambda: line.post(b"", {})


def by_send(http: SafeHttp, url: str) -> Callable[[], object]:
    return lambda: http.send("POST", url, allow_private=True)


@pytest.mark.parametrize("sender", [by_line, by_send])
def test_two_processes_sending_for_real_share_the_limit(
    site: tuple[str, list[float]], counters: Counters, sender: Callable[[SafeHttp, str], Callable[[], object]]
) -> None:
    url, moments = site
    until = time.monotonic() + 2.5

    def work() -> None:
        post = sender(SafeHttp(host_limits=HostLimits(counters, 40, 40)), url)
        while time.monotonic() < until:
            try:
                post()
            except NotSent:
                time.sleep(0.1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Parts of four seconds at most.
    assert 40 <= len(moments) <= 4 * (40 + 2)


def test_connections_beyond_the_limit_are_not_opened(site: tuple[str, list[float]], counters: Counters) -> None:
    url, _ = site
    http = SafeHttp(host_limits=HostLimits(counters, 0, 3))
    lines = [http.line(url, allow_private=True) for _ in range(4)]
    for line in lines[:3]:
        line.post(b"", {})
    with pytest.raises(NotSent, match="3 connections"):
        http.line(url, allow_private=True, limits=LIMITS).post(b"", {})
    lines[0].close()
    assert lines[3].post(b"", {}).status == 200


def test_pooled_connections_are_counted_and_given_back(site: tuple[str, list[float]], counters: Counters) -> None:
    url, _ = site
    http = SafeHttp(host_limits=HostLimits(counters, 0, 2))
    for _ in range(5):
        with http.stream("GET", url, allow_private=True):
            pass  # left unread, so its connection is closed
        http.send("GET", url, allow_private=True)
    with (
        http.stream("GET", url, allow_private=True),
        http.stream("GET", url, allow_private=True),
        pytest.raises(NotSent),
    ):
        http.send("GET", url, allow_private=True, limits=LIMITS)
    assert http.send("GET", url, allow_private=True).status == 200


def test_connection_that_fails_is_given_back(counters: Counters) -> None:
    http = SafeHttp(host_limits=HostLimits(counters, 0, 2))
    for _ in range(5):
        with pytest.raises(Exception, match="the connection to 127"):
            http.send("GET", "http://127.0.0.1:1/", allow_private=True)


def test_refusal_names_the_host_but_not_the_project(counters: Counters) -> None:
    limits = HostLimits(counters, 1)
    limits.call("p-1 source.test", 0)
    with pytest.raises(NotSent) as refused:
        limits.call("p-1 source.test", 0)
    assert refused.value.detail == "source.test already gets 1 calls per second, its limit"
