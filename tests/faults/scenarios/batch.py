"""Twenty items through a business callback, by one runner and by two; one of them fails and is skipped."""

from __future__ import annotations

import json
from collections import Counter

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import Handler, serve

TOTAL = 20
BROKEN = 5
OVER = {"finished", "stopped"}


def run(world: World, runners: int = 1) -> None:
    project = world.new_project()
    called: Counter[int] = Counter()

    def process(request: Handler) -> None:
        index = json.loads(request.body())["index"]
        called[index] += 1
        result = "error" if index == BROKEN else "ok"
        request.answer(200, json.dumps({"result": result}).encode(), Content_Type="application/json")

    with serve(process) as port:
        biz = world.ask(
            "POST", "/v1/biz", key=project.key, json={"name": "biz", "process_url": f"http://127.0.0.1:{port}/"}
        )
        assert biz.status == 201, biz.body
        body = {"biz_id": biz.json()["biz_id"], "name": "batch", "total": TOTAL, "rate": 200}
        body |= {"retries": 1, "on_item_failure": "skip", "runners": runners}
        made = world.ask("POST", "/v1/batches", key=project.key, json=body)
        assert made.status == 201, made.body
        batch = made.json()["batch_id"]
        started = world.ask("POST", f"/v1/batches/{batch}/start", key=project.key, json={})
        # A start whose answer was lost has started it: the second one finds it running.
        assert started.status in (202, 409), started.body
        world.settle(lambda: world.shown(f"/v1/batches/{batch}", project)["status"] in OVER)
        ended = world.shown(f"/v1/batches/{batch}", project)
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", TOTAL), ended
        assert (ended["progress"]["succeeded"], ended["progress"]["failed"]) == (TOTAL - 1, 1), ended
        kept = world.ask("GET", f"/v1/batches/{batch}/items", key=project.key).json()["items"]
        assert [(item["index"], item["state"]) for item in kept] == [(BROKEN, "failed")], kept
        world.settle(lambda: batch in world.told())
        world.settle(world.idle_channels)
    assert sorted(called) == list(range(TOTAL)), called
    assert max(called.values()) <= 2, called


SCENARIO = Scenario("batch", run)
SEVERAL_RUNNERS = Scenario("batch_runners", lambda world: run(world, runners=2))
