"""What a business calls and answers: before-run, biz-start, biz-stop, data and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.batches import batches, control
from tidegate.errors import FetchError, FetchTimeout, NotSent


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def compensate(world: BatchWorld) -> None:
    world.cloud.app.compensation.trigger()
    world.cloud.deliver("CompensationQueue")


def test_batch_with_before_run_waits_for_biz_start(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run", auth_code="sesame"))
    assert world.act(batch_id, "start")["status"] == "waiting_biz"
    assert world.business.calls("/before-run")[0]["batch_id"] == batch_id
    refused = world.http("POST", f"/v1/batches/{batch_id}/biz-start", {"auth_code": "guess"})
    assert (refused.status, refused.json()["code"]) == (403, "wrong_auth_code")
    assert world.shown(batch_id)["status"] == "waiting_biz"
    started = world.act(batch_id, "biz-start", {"auth_code": "sesame"})
    assert (started["status"], started["queue_status"]) == ("running", "queued")


def test_business_may_start_batch_before_it_answers(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run"))

    def start_at_once(body: dict[str, Any]) -> tuple[int, Any]:
        world.act(body["batch_id"], "biz-start", {})
        return 200, {"result": "ok"}

    # The request for `start` goes on while that of the business is served.
    world.cloud.serving = nullcontext
    world.business.answers["/before-run"] = start_at_once
    assert world.act(batch_id, "start")["status"] == "running"


@pytest.mark.parametrize("answer", [(200, {"result": "error", "msg": "no data"}), (500, {})])
def test_refusal_by_business_stops_the_batch(world: BatchWorld, answer: tuple[int, Any]) -> None:
    world.business.answers["/before-run"] = lambda _: answer
    batch_id = world.create(world.register("before_run"))
    assert world.http("POST", f"/v1/batches/{batch_id}/start").status in (422, 502)
    shown = world.shown(batch_id)
    assert shown["status"] == "stopped"
    assert shown["stop_reason"].startswith("the business did not accept the batch")
    world.business.answers.clear()
    assert world.act(batch_id, "start")["status"] == "waiting_biz"


@pytest.mark.parametrize("error", [FetchTimeout("No answer within 10 s"), NotSent("its limit", retry_after=1)])
def test_before_run_without_answer_is_repeated(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, error: FetchError
) -> None:
    batch_id = world.create(world.register("before_run"))

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(control, "ask", fail)
        assert world.act(batch_id, "start")["status"] == "waiting_biz"
    world.cloud.clock.advance(100)
    compensate(world)
    assert len(world.business.calls("/before-run")) == 1
    assert world.act(batch_id, "biz-start", {})["status"] == "running"


def test_batch_stops_30_minutes_after_unanswered_before_run(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = world.create(world.register("before_run"))

    def too_slow(*_: object) -> None:
        raise FetchTimeout("No answer within 10 s")

    monkeypatch.setattr(control, "ask", too_slow)
    world.act(batch_id, "start")
    for _ in range(16):
        world.cloud.clock.advance(120)
        compensate(world)
    assert world.shown(batch_id)["status"] == "stopped"


def test_batch_stops_if_not_started_within_30_minutes(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run"))
    world.act(batch_id, "start")
    world.cloud.clock.advance(29 * 60)
    compensate(world)
    assert world.shown(batch_id)["status"] == "waiting_biz"
    world.cloud.clock.advance(2 * 60)
    compensate(world)
    shown = world.shown(batch_id)
    assert (shown["status"], shown["stop_reason"]) == ("stopped", "the business did not start it within 30 minutes")
    world.act(batch_id, "biz-start", {}, expect=409)


def test_compensation_asks_business_after_crash(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = world.create(world.register("before_run"))

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(control, "ask", die)
        b = world.cloud.app.batches
        batch = batches.get(b, world.project.id, batch_id)
        business = batches.get_business(b, world.project.id, batch.biz_id)
        with pytest.raises(Died):
            control.start(b, batch, business, "test")
    assert world.business.calls("/before-run") == []
    world.cloud.clock.advance(31)
    compensate(world)
    assert len(world.business.calls("/before-run")) == 1
    assert world.act(batch_id, "biz-start", {})["status"] == "running"


def test_biz_stop_shows_its_reason(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run"))
    world.act(batch_id, "start")
    stopped = world.act(batch_id, "biz-stop", {"reason": "wrong list"})
    assert (stopped["status"], stopped["stop_reason"]) == ("stopped", "the business stopped it: wrong list")


def test_data_may_change_while_waiting_or_serial(world: BatchWorld) -> None:
    biz_id = world.register("before_run", auth_code="sesame")
    batch_id = world.create(biz_id, job_data={"v": 1})
    world.act(batch_id, "start")
    world.act(batch_id, "data", {"job_data": {"v": 2}, "auth_code": "wrong"}, expect=403)
    world.act(batch_id, "data", {"job_data": {"v": 2}, "auth_code": "sesame"})
    assert world.cloud.app.batches.store.job_data(world.project.id, batch_id) == {"v": 2}
    world.act(batch_id, "biz-start", {"auth_code": "sesame"})
    world.act(batch_id, "data", {"job_data": 3, "auth_code": "sesame"}, expect=409)
    serial = world.create(world.register(), rate=1)
    world.act(serial, "start")
    world.act(serial, "data", {"job_data": 4})


def test_logs_are_listed_by_batch_and_item_newest_first(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    for number in range(5):
        lines = [{"message": f"m{number}", "index": number % 2}, {"message": f"n{number}", "level": "warn"}]
        assert world.act(batch_id, "logs", {"items": lines}, expect=201) == {"added": 2}
        world.cloud.clock.advance(1)
    seen, cursor = [], None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = world.http("GET", f"/v1/batches/{batch_id}/logs", query=query).json()
        seen += page["items"]
        cursor = page.get("next_cursor")
        if not cursor:
            break
    assert len(seen) == 10
    order = [(line["time"], line["log_id"]) for line in seen]
    assert order == sorted(order, reverse=True)
    of_item = world.http("GET", f"/v1/batches/{batch_id}/logs?index=1").json()["items"]
    assert [line["message"] for line in of_item] == ["m3", "m1"]
    world.act(batch_id, "logs", {"items": []}, expect=422)


def test_log_export_is_a_csv_export_task(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    world.act(batch_id, "logs", {"items": [{"message": "first", "index": 3}, {"message": "second"}]}, expect=201)
    task_id = world.act(batch_id, "logs/export")["task_id"]
    task = world.http("GET", f"/v1/task?task_id={task_id}").json()
    assert (task["type"], task["status"]) == ("csv", "pending")
