"""A batch over a business callback: the outcomes add up to the total, and each item that did not succeed at once is in
the list of items and in the results file, once, with its last state.

One item always fails and is skipped after its retries, one is abandoned, one succeeds at its second attempt.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from unittest.mock import PropertyMock, patch
from urllib.parse import unquote, urlsplit

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import Project
from tidegate.aws import keys
from tidegate.batches.model import Rules
from tidegate.batches.run_state import SlidingWindow

TOTAL = 20
BROKEN, ABANDONED, FLAKY = 5, 11, 14
EXPECTED = {BROKEN: "failed", ABANDONED: "abandoned", FLAKY: "recovered"}
RETRIES = 2
OVER = {"finished", "stopped"}


def run(world: World, **options: Any) -> None:
    """`options` are fields of the batch. Two items do not succeed, and as many are tolerated."""
    project = world.new_project()
    called: Counter[int] = Counter()
    with serve(_business(called)) as port:
        batch = _started(world, project, port, {"max_failed": 2} | options)
        ended = _ended(world, project, batch)
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", TOTAL), ended
        _check_outcomes(world, project, batch, EXPECTED)
        if options.get("report"):
            _check_report(world, project, batch)
        world.settle(lambda: batch in world.notified())
        world.settle(world.idle_channels)
    _check_number_of_calls(called)


def run_over_limit(world: World) -> None:
    """More items fail than allowed: the batch stops. Then more are allowed, and it continues to its end."""
    project = world.new_project()
    called: Counter[int] = Counter()
    with serve(_business(called)) as port:
        batch = _started(world, project, port, {"max_failed": 1, "items_per_call": 4})
        stopped = _ended(world, project, batch)
        assert (stopped["status"], stopped["progress"]["errors"]) == ("stopped", 2), stopped
        items = _items(world, project, batch)
        assert items.items() <= EXPECTED.items(), items
        _check_outcomes(world, project, batch, items)
        more = world.ask("PATCH", f"/v1/batches/{batch}", key=project.key, json={"max_failed": 2})
        assert more.status == 202, more.body
        _start(world, project, batch)
        ended = _ended(world, project, batch)
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", TOTAL), ended
        _check_outcomes(world, project, batch, EXPECTED)
        world.settle(lambda: batch in world.notified())
        world.settle(world.idle_channels)
    _check_number_of_calls(called)


def run_with_results(world: World, **options: Any) -> None:
    """The business accepts each item, and sends its result in a call of its own, between two slices.

    A result that was accepted counts as it said, whatever fails afterwards."""
    project = world.new_project()
    called: Counter[int] = Counter()
    accepted: set[tuple[int, int]] = set()
    calls: deque[dict[str, Any]] = deque()

    def send() -> None:
        while calls:
            item = calls.popleft()
            index, attempt = item["index"], item["attempt"]
            result = "abandon" if index == ABANDONED else "error" if _fails(index, attempt) else "ok"
            path = f"/v1/batches/{item['batch_id']}/items/{index}/result"
            sent = world.ask("POST", path, key=project.key, json={"result": result, "attempt": attempt}, tries=8)
            assert sent.status in (202, 409), sent.body
            if sent.status == 202:
                accepted.add((index, attempt))

    def process(request: Handler) -> None:
        item = json.loads(request.body())
        called[item["index"]] += 1
        calls.append(item)
        request.answer(202)

    world.cloud.while_waiting.append(send)
    with serve(process) as port:
        wanted = {"max_failed": 2, "ack": "async", "item_timeout": 900}
        batch = _started(world, project, port, wanted | options)
        ended = _ended(world, project, batch)
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", TOTAL), ended
        _check_outcomes(world, project, batch, EXPECTED)
        world.settle(lambda: batch in world.notified())
        world.settle(world.idle_channels)
    attempts = {index: RETRIES if index in (BROKEN, FLAKY) else 1 for index in range(TOTAL)}
    # Each attempt has exactly one result, which was accepted: none was given up.
    assert sorted(accepted) == [(index, n + 1) for index, most in attempts.items() for n in range(most)], accepted
    _check_number_of_calls(called)


def run_and_delete(world: World) -> None:
    """A deleted batch is gone for callers at once, and all that belongs to it soon; then its business can go, too."""
    project = world.new_project()
    with serve(_business(Counter())) as port:
        batch = _started(world, project, port, {"max_failed": 2})
        ended = _ended(world, project, batch)
        assert ended["status"] == "finished", ended
        world.settle(world.idle_channels)
    _gone(world, project, f"/v1/batches/{batch}")
    folder = f"batches/{project.id}/{batch}/"
    app = world.cloud.app
    marker = keys.batch_deleted(project.id, batch)
    world.settle(lambda: app.table.get(marker, consistent=True) is None)
    assert list(app.batches.objects.keys(folder)) == []
    left = [
        keys.batch(project.id, batch)["pk"],
        keys.batch_logs(project.id, batch),
        keys.batch_results(project.id, batch),
    ]
    assert [item for pk in left for item in app.table.query_all(pk, consistent=True)] == []
    _gone(world, project, f"/v1/biz/{ended['biz_id']}")
    usage = app.queue.project_usage(project.id)
    assert (usage["batches"], usage["unstarted_batches"], usage["businesses"]) == (0, 0, 0), usage


def _gone(world: World, project: Project, path: str) -> None:
    deleted = world.ask("DELETE", path, key=project.key)
    # If the answer of the first call was lost, the second one finds nothing.
    assert deleted.status in (204, 404), deleted.body
    assert world.ask("GET", path, key=project.key).status == 404


def _fails(index: int, attempt: int) -> bool:
    return index == BROKEN or (index == FLAKY and attempt == 1)


def _business(called: Counter[int]) -> Any:
    def answer(item: dict[str, Any]) -> dict[str, Any]:
        index = item["index"]
        called[index] += 1
        if index == ABANDONED:
            return {"index": index, "result": "abandon"}
        return {"index": index, "result": "error" if _fails(index, item["attempt"]) else "ok"}

    def process(request: Handler) -> None:
        call = json.loads(request.body())
        reply = {"results": [answer(item) for item in call["items"]]} if "items" in call else answer(call)
        request.answer(200, json.dumps(reply).encode(), Content_Type="application/json")

    return process


def _started(world: World, project: Project, port: int, options: dict[str, Any]) -> str:
    wanted = {"name": "biz", "process_url": f"http://127.0.0.1:{port}/"}
    biz = world.ask("POST", "/v1/biz", key=project.key, json=wanted)
    assert biz.status == 201, biz.body
    body = {"biz_id": biz.json()["biz_id"], "name": "batch", "total": TOTAL, "rate": 200}
    body |= {"retries": RETRIES, "retry_delay": 0, "on_item_failure": "skip"} | options
    made = world.ask("POST", "/v1/batches", key=project.key, json=body)
    assert made.status == 201, made.body
    batch = str(made.json()["batch_id"])
    listed = world.shown("/v1/batches", project)["items"]
    assert [one["batch_id"] for one in listed] == [batch], listed
    _start(world, project, batch)
    return batch


def _start(world: World, project: Project, batch: str) -> None:
    started = world.ask("POST", f"/v1/batches/{batch}/start", key=project.key, json={})
    assert started.status == 202, started.body


def _ended(world: World, project: Project, batch: str) -> dict[str, Any]:
    world.settle(lambda: world.shown(f"/v1/batches/{batch}", project)["status"] in OVER)
    return world.shown(f"/v1/batches/{batch}", project)


def _items(world: World, project: Project, batch: str) -> dict[int, str]:
    listed = world.shown(f"/v1/batches/{batch}/items?limit=100", project)["items"]
    kept = {item["index"]: item["state"] for item in listed}
    assert len(kept) == len(listed), listed
    return kept


def _check_outcomes(world: World, project: Project, batch: str, expected: dict[int, str]) -> None:
    progress = world.shown(f"/v1/batches/{batch}", project)["progress"]
    assert progress["succeeded"] + progress["failed"] + progress["abandoned"] == progress["processed"], progress
    assert _items(world, project, batch) == expected
    states = Counter(expected.values())
    assert (progress["failed"], progress["abandoned"]) == (states["failed"], states["abandoned"]), progress
    lines = _lines(world, project, f"/v1/batches/{batch}/results")
    assert [(line["index"], line["state"]) for line in lines] == sorted(expected.items()), lines


def _check_report(world: World, project: Project, batch: str) -> None:
    lines = _lines(world, project, f"/v1/batches/{batch}/results?all=true")
    found = sorted((line["index"], line["state"]) for line in lines)
    assert found == [(index, EXPECTED.get(index, "succeeded")) for index in range(TOTAL)], lines


def _lines(world: World, project: Project, path: str) -> list[dict[str, Any]]:
    link = urlsplit(world.shown(path, project)["url"])
    key = unquote(link.path).removeprefix(f"/{world.cloud.names.refs['FilesBucket']}").removeprefix("/")
    return [json.loads(line) for line in world.read(key).splitlines()]


def _check_number_of_calls(called: Counter[int]) -> None:
    """A crash repeats at most the calls that were running, so each attempt may be made twice."""
    assert sorted(called) == list(range(TOTAL)), called
    for index, times in called.items():
        attempts = RETRIES if index in (BROKEN, FLAKY) else 1
        assert attempts <= times <= 2 * attempts, called


def _with_items_aside(run: Callable[..., None], **options: Any) -> Callable[[World], None]:
    """The window holds four items, and retries wait longer than the others take: they stand aside."""

    def played(world: World) -> None:
        small, aside = PropertyMock(return_value=4), SlidingWindow.set_first_aside
        with (
            patch.object(Rules, "window_size", small),
            patch.object(SlidingWindow, "set_first_aside", autospec=True, side_effect=aside) as set_aside,
        ):
            run(world, retry_delay=0.5, **options)
        assert set_aside.called

    return played


SCENARIO = Scenario("batch", run)
SEVERAL_RUNNERS = Scenario("batch_runners", lambda world: run(world, runners=2, items_per_call=3, report=True))
ASIDE = Scenario("batch aside", _with_items_aside(run, runners=2))
RESULTS_ASIDE = Scenario("batch results aside", _with_items_aside(run_with_results))
WITH_RESULTS = Scenario("batch results", lambda world: run_with_results(world, runners=2))
OVER_LIMIT = Scenario("batch over limit", run_over_limit)
DELETED = Scenario("batch deleted", run_and_delete)
