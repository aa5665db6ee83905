"""Limits for one address, shared by batches and callbacks through the table."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from tests.integration.notifications.receiving import callbacks, pass_time, receiver, send_notice
from tests.support.batches import receiver as batch_receiver
from tests.support.batches.lab import Lab
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.patience import Background
from tidegate.aws import keys
from tidegate.aws.host_usage import HostUsage
from tidegate.batches.model import FINISHED
from tidegate.batches.slice import ENDED
from tidegate.errors import NotSent
from tidegate.http.client import SafeHttp
from tidegate.http.connections import HostLimits


def test_counter_adds_up_and_expires(cloud: MotoCloud) -> None:
    usage = HostUsage(cloud.app.table, cloud.clock)
    assert [usage.add("192.0.2.1", "calls", 7, amount) for amount in (10, 5)] == [10, 15]
    assert usage.add("192.0.2.1", "calls", 8, 1) == 1
    item = cloud.app.table.get(keys.host_usage("192.0.2.1", "calls", 7))
    assert item
    assert item["expires_at"] > cloud.clock().timestamp()


def test_two_batches_in_two_functions_share_the_limit_and_fail_no_item(cloud: MotoCloud) -> None:
    with batch_receiver.receiver() as business:
        labs = [Lab(cloud.app.table, business.url) for _ in range(2)]
        began = time.monotonic()
        threads, batches = [], []
        for number, lab in enumerate(labs):
            count = HostUsage(cloud.app.table, cloud.clock).add
            lab.http = SafeHttp(host_limits=HostLimits(count, 50, 0))
            batch = lab.batch(100 + number, rate=500, retries=1)
            batches.append(batch)
            threads.append(Background(partial(lab.run, batch)))
        for thread in threads:
            thread.join(30)
        calls = business.calls()
    assert [lab.now(batch)[0].status for lab, batch in zip(labs, batches, strict=True)] == [FINISHED] * 2
    assert {attempt for _, _, attempt in calls} == {1}
    # 201 calls at 50 per second (and one free call for each function) take parts of at least five seconds.
    assert len(calls) == 201
    assert time.monotonic() - began > 2.5


def test_item_that_was_not_sent_repeats_the_same_attempt(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    held_back = [3]
    real = HostLimits.call

    def call(self: HostLimits, address: str, patience: float) -> float:
        if held_back[0]:
            held_back[0] -= 1
            raise NotSent("enough for now", retry_after=0.05)
        return real(self, address, patience)

    monkeypatch.setattr(HostLimits, "call", call)
    with batch_receiver.receiver() as business:
        lab = Lab(cloud.app.table, business.url)
        batch = lab.batch(10, rate=500, retries=1)
        assert lab.run(batch) == ENDED
        assert sorted((index, attempt) for _, index, attempt in business.calls()) == [(n, 1) for n in range(10)]
    assert lab.now(batch)[0].status == FINISHED


def test_waiting_for_the_limit_does_not_count_as_receiver_time(cloud: MotoCloud, project: Project) -> None:
    cloud.app.notifications.deliverer._http = SafeHttp(host_limits=HostLimits(lambda *_: 10**6, 1, 0))
    with receiver() as at:
        for number in range(3):
            send_notice(project, at.url, f"req-{number}")
        began = time.monotonic()
        cloud.deliver("CallbacksQueue")
        took = time.monotonic() - began
    assert took > 1, "one a second is free"
    shown = callbacks(project)
    assert len(shown) == 3
    # The last one waited for a second at least, whatever the machine's load.
    assert max(attempt["duration_ms"] for each in shown for attempt in each["attempts"]) < 1000 * (took - 0.9)


def test_callback_that_was_not_sent_counts_no_attempt_or_failure(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back = [6]
    real = cloud.app.http.stream

    def stream(*args: Any, **kwargs: Any) -> Any:
        if held_back[0]:
            held_back[0] -= 1
            raise NotSent("enough for now", retry_after=1)
        return real(*args, **kwargs)

    monkeypatch.setattr(cloud.app.http, "stream", stream)
    with receiver() as at:
        send_notice(project, at.url)
        cloud.deliver("CallbacksQueue")
        for _ in range(10):
            pass_time(cloud, 3)
        assert len(at.seen) == 1
        items = cloud.client("dynamodb").scan(TableName=cloud.app.table.name)["Items"]
        assert not [item for item in items if "#CIRCUIT#" in item["pk"]["S"]]
    (shown,) = callbacks(project, task_id="req-1")
    assert (shown["callback_state"], [attempt["status"] for attempt in shown["attempts"]]) == ("delivered", [200])
