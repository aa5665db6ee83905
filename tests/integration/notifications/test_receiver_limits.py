"""A receiver gets as many callbacks at once as it can take, and waiting ones do not affect others."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from tests.integration.notifications.receiving import callbacks, pass_time, receiver, send_notice
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.notifications.deliveries import FIRST_LIMIT, MOST_AT_ONCE, CircuitBreaker, CircuitEntry, CircuitStore

HOST = "slow.example"


def breaker(cloud: MotoCloud) -> CircuitBreaker:
    return CircuitBreaker(CircuitStore(cloud.app.table))


def work_off(cloud: MotoCloud, project: Project, seconds: float, backlog: int) -> tuple[int, int]:
    """(callbacks delivered, postponements) in that time, for a host that takes 3.5 s for each callback of a backlog."""
    host, done, put_off = breaker(cloud), 0, 0
    start = cloud.clock().timestamp()
    queue = [start] * backlog
    under_way: list[tuple[float, CircuitEntry]] = []
    now = start
    while now < start + seconds and (queue or under_way):
        for ends, entry in [one for one in under_way if one[0] <= now]:
            under_way.remove((ends, entry))
            host.leave(project.id, HOST, now, blamed=False, took=3.5, entry=entry)
            done += 1
        due = sum(at <= now for at in queue)
        queue = [at for at in queue if at > now]
        for _ in range(due):
            entry = host.enter(project.id, HOST, now)
            if entry.wait:
                put_off += 1
                queue.append(now + entry.wait)
            else:
                under_way.append((now + 3.5, entry))
        now += 0.5
    return done, put_off


def test_slow_healthy_receiver_gets_more_callbacks_at_once(cloud: MotoCloud, project: Project) -> None:
    host = breaker(cloud)
    host.leave(project.id, HOST, cloud.clock().timestamp(), blamed=False, took=3.5, entry=CircuitEntry())
    done, put_off = work_off(cloud, project, 60, 100)

    # One at a time it would be 17.
    assert done == 100
    assert put_off < 3 * 100


def test_postponed_callbacks_are_not_read_more_often_with_a_backlog(cloud: MotoCloud, project: Project) -> None:
    host, now = breaker(cloud), cloud.clock().timestamp()
    host.leave(project.id, HOST, now, blamed=False, took=3.5, entry=CircuitEntry())
    waits = []
    for _ in range(60):
        entry = host.enter(project.id, HOST, now)
        waits += [entry.wait] if entry.wait else []

    later = [sum(1 for wait in waits if second <= wait < second + 5) for second in range(2, 22, 5)]
    # They come back as fast as the host is expected to answer by then, and no faster.
    assert max(later) <= 5 * MOST_AT_ONCE / 3.5 + 1
    assert max(waits) > 5


def test_time_is_reserved_up_to_the_longest_wait_and_no_further(cloud: MotoCloud, project: Project) -> None:
    host, store, now = breaker(cloud), CircuitStore(cloud.app.table), cloud.clock().timestamp()
    host.leave(project.id, HOST, now, blamed=False, took=3.5, entry=CircuitEntry())

    reserved = [store.reserve(project.id, HOST, now, now + 30, 10) for _ in range(5)]

    assert reserved == [pytest.approx(now + seconds, abs=0.01) for seconds in (10, 20, 30)] + [None, None]
    # Later there are free times again; unused ones are skipped.
    assert store.reserve(project.id, HOST, now + 10, now + 40, 10) == pytest.approx(now + 40, abs=0.01)
    assert store.reserve(project.id, HOST, now + 100, now + 130, 10) == pytest.approx(now + 110, abs=0.01)


def test_limit_halves_with_a_failure_and_grows_with_a_success(cloud: MotoCloud, project: Project) -> None:
    host, store, now = breaker(cloud), CircuitStore(cloud.app.table), cloud.clock().timestamp()
    limits = []
    for blamed in (False, False, True, True, False):
        now += 100
        entry = host.enter(project.id, HOST, now)
        assert entry.wait == 0
        host.leave(project.id, HOST, now, blamed=blamed, took=3.5, entry=entry)
        state, _ = store.states(project.id, HOST)
        assert state is not None
        limits.append(state.limit)

    assert limits == [FIRST_LIMIT + 1, FIRST_LIMIT + 2, 5, 2, 3]
    assert max(limits) < MOST_AT_ONCE


def test_quick_healthy_receiver_costs_one_read(cloud: MotoCloud, project: Project) -> None:
    host, now = breaker(cloud), cloud.clock().timestamp()
    with count_calls(cloud.app) as calls:
        host.leave(project.id, HOST, now, blamed=False, took=0.1, entry=host.enter(project.id, HOST, now))

    assert calls == {"dynamodb.BatchGetItem": 1}


def test_place_of_a_function_that_died_is_free_after_its_time(cloud: MotoCloud, project: Project) -> None:
    host, now = breaker(cloud), cloud.clock().timestamp()
    for _ in range(3):
        host.leave(project.id, HOST, now, blamed=True, took=1.0, entry=host.enter(project.id, HOST, now + 100))
    now += 100
    assert host.enter(project.id, HOST, now).wait == 0
    assert host.enter(project.id, HOST, now).wait > 0

    assert host.enter(project.id, HOST, now + 16).wait == 0


def test_state_of_a_paused_host_expires(cloud: MotoCloud, project: Project) -> None:
    """Another callback to the host may succeed, and clear its state, between the failure and the pause."""
    store, now = CircuitStore(cloud.app.table), cloud.clock().timestamp()
    store.fail(project.id, HOST, now, 1, 1.0, None)
    store.clear(project.id, HOST)
    store.pause(project.id, HOST, now + 60)

    item = cloud.app.table.get(keys.circuit(project.id, HOST), consistent=True)
    assert item is not None
    assert item["expires_at"] > now


def test_callback_that_was_never_tried_is_not_given_up(cloud: MotoCloud, project: Project) -> None:
    with receiver() as at:
        send_notice(project, at.url)
        with patch.object(CircuitBreaker, "enter", return_value=CircuitEntry(wait=900.0)):
            pass_time(cloud, 26 * 3600)
        (waiting,) = callbacks(project)
        assert (waiting["callback_state"], waiting["tries"]) == ("pending", 0)

        pass_time(cloud, 1800)
        assert len(at.seen) == 1
    assert callbacks(project)[0]["callback_state"] == "delivered"


def test_dead_letter_sent_back_to_the_queue_is_delivered(cloud: MotoCloud, project: Project) -> None:
    with receiver(410, 200) as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        assert callbacks(project)[0]["callback_state"] == "dead"
        sqs, names = cloud.client("sqs"), cloud.names.queues
        (letter,) = sqs.receive_message(QueueUrl=names["CallbacksDeadLetters"])["Messages"]
        assert "due" not in json.loads(letter["Body"])

        sqs.send_message(QueueUrl=names["CallbacksQueue"], MessageBody=letter["Body"])
        for _ in range(2):
            cloud.deliver("CallbacksQueue")

        assert len(at.seen) == 2
    assert callbacks(project)[0]["callback_state"] == "delivered"
