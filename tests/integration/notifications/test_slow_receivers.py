"""One slow or dead receiver does not delay the others."""

from __future__ import annotations

import threading

from tests.integration.notifications.receiving import callbacks, pass_time, receiver, send_notice
from tests.support.http_servers import Handler
from tests.support.moto.cloud import MotoCloud, Project


def test_slow_receiver_does_not_delay_others_of_its_batch(cloud: MotoCloud, project: Project) -> None:
    """Calls that hang are open at the same time, and the others are made meanwhile."""
    lock, opened = threading.Lock(), [0, 0]

    def hang(request: Handler) -> None:
        with lock:
            opened[0] += 1
            opened[1] = max(opened)
        slow.released.wait(20)
        with lock:
            opened[0] -= 1

    with receiver(hang) as slow, receiver() as quick:
        for number in range(5):
            send_notice(project, slow.url, f"slow-{number}")
            send_notice(project, quick.url, f"quick-{number}")
        cloud.deliver("CallbacksQueue")

        assert len(quick.seen) == 5
        assert opened[1] > 1, "one after another"


def test_dead_host_gets_its_callbacks_when_it_is_back(cloud: MotoCloud, project: Project) -> None:
    down = [True]
    with receiver(lambda request: request.answer(503 if down[0] else 200)) as at:
        for number in range(10):
            send_notice(project, at.url, f"req-{number}")
        cloud.deliver("CallbacksQueue")
        while_open = len(at.seen)
        cloud.clock.advance(4)
        cloud.deliver("CallbacksQueue")
        assert len(at.seen) == while_open <= 10, "not even a probe yet"

        down[0] = False
        for _ in range(12):
            pass_time(cloud, 20)

        assert len(at.seen) == while_open + 10
    assert {shown["callback_state"] for shown in callbacks(project, limit=100)} == {"delivered"}


def test_open_circuit_spends_no_attempt(cloud: MotoCloud, project: Project) -> None:
    with receiver(503) as at:
        for number in range(4):
            send_notice(project, at.url, f"req-{number}")
            cloud.deliver("CallbacksQueue")
        send_notice(project, at.url, "late")
        cloud.deliver("CallbacksQueue")

        assert len(at.seen) == 3
    (late,) = callbacks(project, task_id="late")
    assert (late["callback_state"], late["attempts"], late["tries"]) == ("pending", [], 0)


def test_open_circuit_of_one_project_does_not_affect_another(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project()
    with receiver(503) as at:
        for number in range(4):
            send_notice(project, at.url, f"req-{number}")
            cloud.deliver("CallbacksQueue")
        send_notice(other, at.url)
        cloud.deliver("CallbacksQueue")

        assert len(at.seen) == 4
