"""The business side: before-run, biz-start, biz-stop, data and logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tidegate.errors import FetchTimeout


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def compensate(world: BatchWorld) -> None:
    world.cloud.app.compensation.poll.trigger()
    world.cloud.deliver("CompensationQueue")


def test_with_before_run_the_batch_waits_for_biz_start_and_its_code(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run", auth_code="sesame"))
    assert world.act(batch_id, "start")["status"] == "waiting_biz"
    assert world.business.calls("/before-run")[0]["batch_id"] == batch_id
    refused = world.http("POST", f"/v1/batches/{batch_id}/biz-start", {"auth_code": "guess"})
    assert (refused.status, refused.json()["code"]) == (403, "wrong_auth_code")
    assert world.shown(batch_id)["status"] == "waiting_biz"
    started = world.act(batch_id, "biz-start", {"auth_code": "sesame"})
    assert (started["status"], started["queue_status"]) == ("running", "queued")


def test_a_business_may_start_the_batch_before_it_has_answered(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run"))

    def start_at_once(said: dict[str, Any]) -> tuple[int, Any]:
        world.act(said["batch_id"], "biz-start", {})
        return 200, {"result": "ok"}

    world.business.answers["/before-run"] = start_at_once
    assert world.act(batch_id, "start")["status"] == "running"


@pytest.mark.parametrize("answer", [(200, {"result": "error", "msg": "no data"}), (500, {})])
def test_a_business_that_does_not_take_the_batch_stops_it(world: BatchWorld, answer: tuple[int, Any]) -> None:
    world.business.answers["/before-run"] = lambda said: answer
    batch_id = world.create(world.register("before_run"))
    assert world.http("POST", f"/v1/batches/{batch_id}/start").status in (422, 502)
    shown = world.shown(batch_id)
    assert shown["status"] == "stopped"
    assert shown["stop_reason"].startswith("the business did not take it")
    world.business.answers.clear()
    assert world.act(batch_id, "start")["status"] == "waiting_biz"


def test_a_business_that_is_slow_to_answer_before_run_has_not_refused(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = world.create(world.register("before_run"))
    calls = world.cloud.app.batches.control._calls

    def too_slow(*_: object) -> None:
        raise FetchTimeout("No answer within 10 s")

    with monkeypatch.context() as slow:
        slow.setattr(calls, "ask", too_slow)
        assert world.act(batch_id, "start")["status"] == "waiting_biz"
    world.cloud.clock.advance(100)
    compensate(world)
    assert len(world.business.calls("/before-run")) == 1
    assert world.act(batch_id, "biz-start", {})["status"] == "running"


def test_a_business_that_never_answers_before_run_has_30_minutes_too(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = world.create(world.register("before_run"))

    def too_slow(*_: object) -> None:
        raise FetchTimeout("No answer within 10 s")

    monkeypatch.setattr(world.cloud.app.batches.control._calls, "ask", too_slow)
    world.act(batch_id, "start")
    for _ in range(16):
        world.cloud.clock.advance(120)
        compensate(world)
    assert world.shown(batch_id)["status"] == "stopped"


def test_the_business_has_30_minutes(world: BatchWorld) -> None:
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


def test_whoever_dies_before_asking_is_made_good_by_compensation(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = world.create(world.register("before_run"))
    calls = world.cloud.app.batches.control._calls

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(calls, "ask", die)
        with pytest.raises(Died):
            world.cloud.app.batches.control.start(world.project.id, batch_id, "test")
    assert world.business.calls("/before-run") == []
    world.cloud.clock.advance(31)
    compensate(world)
    assert len(world.business.calls("/before-run")) == 1
    assert world.act(batch_id, "biz-start", {})["status"] == "running"


def test_biz_stop_gives_its_reason(world: BatchWorld) -> None:
    batch_id = world.create(world.register("before_run"))
    world.act(batch_id, "start")
    stopped = world.act(batch_id, "biz-stop", {"reason": "wrong list"})
    assert (stopped["status"], stopped["stop_reason"]) == ("stopped", "the business stopped it: wrong list")


def test_data_changes_while_the_batch_waits_for_the_business_or_is_serial(world: BatchWorld) -> None:
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


def test_logs_are_kept_by_batch_and_by_item_in_order_of_time_then_id(world: BatchWorld) -> None:
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


def test_logs_are_exported_as_csv_through_the_export_service(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    world.act(batch_id, "logs", {"items": [{"message": "first", "index": 3}, {"message": "second"}]}, expect=201)
    task_id = world.act(batch_id, "logs/export")["task_id"]
    task = world.http("GET", f"/v1/task?task_id={task_id}").json()
    assert (task["type"], task["status"]) == ("csv", "pending")
