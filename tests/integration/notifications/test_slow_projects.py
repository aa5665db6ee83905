"""A project with any number of receivers that do not answer leaves room for the callbacks of others."""

from __future__ import annotations

from tests.integration.notifications.receiving import Receiver, callbacks, pass_time, receiver, send_notice
from tests.support.calls import count_calls
from tests.support.http_servers import Handler
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.notifications.deliveries import (
    PLACE_SECONDS,
    PROJECT_FIRST_LIMIT,
    SLOW_SECONDS,
    CircuitBreaker,
    CircuitEntry,
    CircuitStore,
)

HOSTS = 60
EVERY_ADDRESS = ""


def send_to_many_hosts(project: Project, to: Receiver) -> None:
    for number in range(1, HOSTS + 1):
        send_notice(project, f"http://127.0.0.{number}:{to.port}/hook", f"req-{number}")


def breaker_of_slow_project(cloud: MotoCloud, project: Project) -> CircuitBreaker:
    """One of the project's hosts was slow once, which sets the first limit and one more."""
    breaker = CircuitBreaker(CircuitStore(cloud.app.table))
    now = cloud.clock().timestamp()
    breaker.leave(project.id, "slow.example", now, blamed=False, took=SLOW_SECONDS, entry=CircuitEntry())
    return breaker


def test_many_silent_hosts_of_a_project_get_few_callbacks(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project()
    with receiver("hang", host=EVERY_ADDRESS) as silent, receiver() as at:
        send_to_many_hosts(project, silent)
        send_notice(other, at.url, "other")
        cloud.deliver("CallbacksQueue")
        for _ in range(4):
            pass_time(cloud, 5)

        # Ten run before the first time-out is known.
        assert 10 <= len(silent.seen) < 30
        assert len(at.seen) == 1
        silent.released.set()
    assert {shown["callback_state"] for shown in callbacks(project, limit=100)} == {"pending"}


def test_hosts_that_were_silent_get_their_callbacks_when_they_are_back(cloud: MotoCloud, project: Project) -> None:
    down = [True]

    def answer(request: Handler) -> None:
        if down[0]:
            at.hang(request)
        else:
            request.answer(200)

    with receiver(answer, host=EVERY_ADDRESS) as at:
        send_to_many_hosts(project, at)
        cloud.deliver("CallbacksQueue")
        down[0] = False
        at.released.set()
        pass_time(cloud, 300, step=15)
    assert {shown["callback_state"] for shown in callbacks(project, limit=100)} == {"delivered"}


def test_healthy_project_with_many_hosts_is_delivered_at_once(cloud: MotoCloud, project: Project) -> None:
    with receiver(host=EVERY_ADDRESS) as at:
        send_to_many_hosts(project, at)
        cloud.deliver("CallbacksQueue")
        assert len(at.seen) == HOSTS


def test_slow_project_holds_as_many_places_as_its_limit(cloud: MotoCloud, project: Project) -> None:
    breaker, now = breaker_of_slow_project(cloud, project), cloud.clock().timestamp()
    entries = [breaker.enter(project.id, f"host-{number}", now) for number in range(HOSTS)]

    allowed = [entry for entry in entries if not entry.wait]
    assert len(allowed) == PROJECT_FIRST_LIMIT + 1
    assert all(entry.wait >= 1 for entry in entries if entry.wait)
    assert not breaker.enter(cloud.project().id, "host-1", now).wait

    breaker.leave(project.id, "host-0", now, blamed=False, took=0.1, entry=allowed[0])
    assert not breaker.enter(project.id, "another", now).wait


def test_place_of_a_project_is_free_after_its_function_died(cloud: MotoCloud, project: Project) -> None:
    breaker, now = breaker_of_slow_project(cloud, project), cloud.clock().timestamp()
    while not breaker.enter(project.id, "host", now).wait:
        pass
    assert not breaker.enter(project.id, "host", now + PLACE_SECONDS + 1).wait


def test_quick_host_of_a_slow_project_costs_two_writes_more(cloud: MotoCloud, project: Project) -> None:
    breaker, now = breaker_of_slow_project(cloud, project), cloud.clock().timestamp()
    with count_calls(cloud.app) as calls:
        entry = breaker.enter(project.id, "quick.example", now)
        breaker.leave(project.id, "quick.example", now, blamed=False, took=0.1, entry=entry)

    assert calls == {"dynamodb.BatchGetItem": 1, "dynamodb.UpdateItem": 2}


def test_callback_that_waited_in_vain_makes_its_project_slow(cloud: MotoCloud, project: Project) -> None:
    breaker, now = CircuitBreaker(CircuitStore(cloud.app.table)), cloud.clock().timestamp()
    breaker.give_back(project.id, "host", now, waited=0.1, entry=CircuitEntry())
    assert breaker.enter(project.id, "host", now).project is None

    breaker.give_back(project.id, "host", now, waited=SLOW_SECONDS, entry=CircuitEntry())
    assert breaker.enter(project.id, "host", now).project_place is not None
    item = cloud.app.table.get(keys.circuit(project.id, keys.ALL_HOSTS), consistent=True)
    assert item is not None
    assert item["expires_at"] > now


def test_call_that_was_not_sent_gives_its_place_back(cloud: MotoCloud, project: Project) -> None:
    breaker, now = breaker_of_slow_project(cloud, project), cloud.clock().timestamp()
    entry = breaker.enter(project.id, "other.example", now)
    assert entry.project_place is not None
    taken = CircuitStore(cloud.app.table).states(project.id, "other.example")[1]
    assert taken
    assert entry.project_place in taken.places

    breaker.give_back(project.id, "other.example", now, waited=0.0, entry=entry)

    freed = CircuitStore(cloud.app.table).states(project.id, "other.example")[1]
    assert freed
    assert entry.project_place not in freed.places
