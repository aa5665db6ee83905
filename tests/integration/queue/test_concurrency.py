"""Many at once, against the same channel."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.queue import TestQueue
from tidegate.domain.requests import Request

CAPACITY, REQUESTS = 5, 50


def test_50_submitters_and_finishers_against_capacity_5_never_more_than_5_no_leak_all_end(queue: TestQueue) -> None:
    queue.capacity(no_cookie=CAPACITY)
    app, done = queue.cloud.app, threading.Event()
    most: list[int] = []

    def submit_and_finish() -> Request:
        """Submits one, and finishes one: whichever runs."""
        request = queue.submit()
        while not done.is_set():
            running = app.channel_store.slots("no_cookie")
            most.append(max(len(running), queue.channel().running))
            for project_id, request_id, attempt in running:
                if app.queue.finish(project_id, request_id, attempt, result={}).attempt == attempt:
                    return request
            time.sleep(0.05)
        return request

    def admit() -> None:
        while not done.is_set():
            app.admission.admit("no_cookie")

    # Two admitters at once are more than the FIFO group allows: the slots hold by themselves.
    with ThreadPoolExecutor(REQUESTS + 2) as pool:
        admitters = [pool.submit(admit) for _ in range(2)]
        requests = [work.result(30) for work in [pool.submit(submit_and_finish) for _ in range(REQUESTS)]]
        while any(not queue.now(request).is_over for request in requests):
            for project_id, request_id, attempt in app.channel_store.slots("no_cookie"):
                app.queue.finish(project_id, request_id, attempt, result={})
        done.set()
        for admitter in admitters:
            admitter.result()

    assert queue.statuses(*requests) == ["completed"] * REQUESTS
    assert 0 < max(most) <= CAPACITY
    assert queue.channel().running == 0
    assert app.channel_store.slots("no_cookie") == []
    assert list(app.channel_store.waiting("no_cookie")) == []
    assert sorted(queue.executions()) == sorted(f"{request.request_id}-1" for request in requests)
