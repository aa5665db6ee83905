"""Many submitters and two admitters in parallel on one channel."""

from __future__ import annotations

import queue as threads_queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

from tests.support.queue import TestQueue
from tidegate.queue.admission import admit
from tidegate.queue.model import Request

CAPACITY, REQUESTS = 5, 50


def test_50_parallel_requests_never_exceed_capacity_5_and_all_end(queue: TestQueue) -> None:
    queue.capacity(no_cookie=CAPACITY)
    app, done = queue.cloud.app, threading.Event()
    started: threads_queue.Queue[Request] = threads_queue.Queue()
    names: list[str] = []
    most: list[int] = []

    def start(request: Request) -> str:
        names.append(f"{request.request_id}-{request.attempt}")
        most.append(max(len(app.queue.channel_store.slots("no_cookie")), queue.channel().running))
        started.put(request)
        return ""

    def submit_and_finish() -> Request:
        """Submits a request and finishes any running one."""
        submitted = queue.submit()
        running = started.get(timeout=60)
        app.queue.finish(running.project_id, running.request_id, running.attempt, result={})
        return submitted

    def admit_on() -> None:
        while not done.is_set():
            admit(app.queue, "no_cookie")
            time.sleep(0.05)

    # The FIFO group allows one admitter at a time. The slots must hold even with two.
    with patch.object(app.queue.runner, "start", start), ThreadPoolExecutor(REQUESTS + 2) as pool:
        admitters = [pool.submit(admit_on) for _ in range(2)]
        requests = [work.result(60) for work in [pool.submit(submit_and_finish) for _ in range(REQUESTS)]]
        done.set()
        for admitter in admitters:
            admitter.result()

    assert queue.statuses(*requests) == ["completed"] * REQUESTS
    assert 0 < max(most) <= CAPACITY
    assert queue.channel().running == 0
    assert app.queue.channel_store.slots("no_cookie") == []
    assert not any(app.queue.channel_store.waiting("no_cookie", queue.project.id))
    (standing,) = app.queue.channel_store.standings("no_cookie")
    assert (standing.waiting, standing.running) == (0, 0)
    assert sorted(names) == sorted(f"{request.request_id}-1" for request in requests)
