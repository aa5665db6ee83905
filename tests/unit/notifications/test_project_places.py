"""Simulates projects with many receivers: how many callbacks run at once, and how long healthy receivers wait."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tests.support.circuits import CircuitsInMemory
from tidegate.aws.keys import ALL_HOSTS
from tidegate.notifications.deliveries import (
    PROJECT_LEAST,
    PROJECT_SLOW_SECONDS,
    CircuitBreaker,
    CircuitEntry,
    back_off,
)

TIME_OUT, QUICK, DELIVERERS = 10.0, 0.05, 80


@dataclass
class Simulation:
    """Callbacks of one project. Receivers whose name begins with `dead` do not answer; the others are quick."""

    store: CircuitsInMemory = field(default_factory=CircuitsInMemory)
    # (begin, end) of each call.
    calls: list[tuple[float, float]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    put_offs: int = 0

    def run(self, arrivals: Iterable[tuple[float, str]], until: float) -> Simulation:
        breaker, numbers, running = CircuitBreaker(self.store), count(), 0
        events: list[tuple[float, int, str, float, int, CircuitEntry | None]] = [
            (at, next(numbers), host, at, 0, None) for at, host in arrivals
        ]
        heapq.heapify(events)
        while events and events[0][0] < until:
            now, _, host, arrived, tries, entry = heapq.heappop(events)
            dead = host.startswith("dead")
            if entry is not None:
                running -= 1
                took = TIME_OUT if dead else QUICK
                breaker.leave("p", host, now, blamed=dead, took=took, entry=entry, timed_out=dead)
                if not dead:
                    self.delays.append(now - arrived)
                else:
                    again = now + back_off(tries + 1, 0.5)
                    heapq.heappush(events, (again, next(numbers), host, arrived, tries + 1, None))
                continue
            if running == DELIVERERS:
                heapq.heappush(events, (now + 0.5, next(numbers), host, arrived, tries, None))
                continue
            entry = breaker.enter("p", host, now)
            if entry.wait:
                self.put_offs += 1
                heapq.heappush(events, (now + entry.wait, next(numbers), host, arrived, tries, None))
                continue
            running += 1
            ends = now + (TIME_OUT if dead else QUICK)
            self.calls.append((now, ends))
            heapq.heappush(events, (ends, next(numbers), host, arrived, tries, entry))
        return self

    def held(self, begin: float, end: float) -> list[int]:
        """How many calls run, for each second of that time."""
        seconds = range(int(begin), int(end))
        return [sum(began <= second < ended for began, ended in self.calls) for second in seconds]


def test_new_hosts_that_do_not_answer_hold_few_places() -> None:
    """Without the project's limit they hold all 80 places for the whole time."""
    done = Simulation().run([(0.0, f"dead-{number}") for number in range(1000)], 600)

    held = done.held(30, 600)
    assert max(held) <= 2 * PROJECT_LEAST
    assert sum(held) / len(held) < PROJECT_LEAST
    assert done.put_offs < 5 * 1000


def test_healthy_hosts_hardly_wait_for_a_dead_one() -> None:
    dead = [(number / 2, "dead") for number in range(600)]
    healthy = [(number / 40, f"host-{number % 50}") for number in range(12_000)]
    done = Simulation().run([*dead, *healthy], 330)

    assert len(done.delays) == 12_000
    assert sum(done.delays) / 12_000 < 2 * QUICK
    assert max(done.delays) < 10


def test_healthy_hosts_go_on_while_a_tenth_of_the_hosts_are_dead() -> None:
    hosts = [f"dead-{number}" if number % 10 == 0 else f"host-{number}" for number in range(100)]
    done = Simulation().run([(number / 40, hosts[number % 100]) for number in range(12_000)], 400)

    assert len(done.delays) == 12_000 * 0.9
    late = sorted(done.delays[-5000:])
    assert late[len(late) * 9 // 10] < 5


def test_limit_ends_when_no_host_was_slow_for_a_while() -> None:
    store = CircuitsInMemory()
    Simulation(store).run([(0.0, "dead")], 11)
    breaker = CircuitBreaker(store)
    assert store.records[ALL_HOSTS].limit

    assert breaker.enter("p", "host", 12.0).project_place is not None
    assert breaker.enter("p", "host", 11.0 + PROJECT_SLOW_SECONDS) == CircuitEntry()


def test_quick_failures_do_not_limit_a_project() -> None:
    store = CircuitsInMemory()
    CircuitBreaker(store).leave("p", "refuses", 0.0, blamed=True, took=0.01, entry=CircuitEntry())
    assert ALL_HOSTS not in store.records
