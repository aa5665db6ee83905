"""Exports of a few pages and of many, with a callback at the end."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from urllib.parse import parse_qs, urlsplit

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.http_servers import Handler, serve

TOTAL, STEP = 250, 100
# Enough pages to be pulled and rendered in ranges, by two workers.
MANY = 1650
OVER = {"completed", "failed", "cancelled"}


def run(world: World, total: int = TOTAL) -> None:
    project = world.new_project()
    callbacks: Counter[str] = Counter()

    def route(request: Handler) -> None:
        if request.command == "POST":
            request.body()
            callbacks[request.headers["webhook-id"]] += 1
            request.answer(200)
        else:
            request.answer(200, _page(request.path, total), Content_Type="application/json")

    with serve(route) as port:
        url = f"http://127.0.0.1:{port}/rows"
        body = {
            "name": "rows",
            "source_url": url,
            "step": STEP,
            "callback": f"http://127.0.0.1:{port}/told",
            "parallel": 8,
        }
        made = world.ask("POST", "/v1/task", key=project.key, json=body)
        assert made.status == 202, made.body
        task = made.json()["task_id"]
        world.settle(lambda: world.shown(f"/v1/task?task_id={task}", project)["status"] in OVER)
        ended = world.shown(f"/v1/task?task_id={task}", project)
        assert ended["status"] == "completed", ended
        world.settle(lambda: task in world.notified() and bool(callbacks))
        world.settle(world.idle_channels)
    # One task, although a caller without an answer sent its request again.
    assert len(callbacks) == 1, callbacks
    world.next_day()
    # One file per task: the files and staged pages of dead attempts were removed.
    files = world.objects()
    assert len({key.rsplit("/", 1)[0] for key in files}) == len(files) == 1, files
    assert any(task in key for key in files), files
    for key in files:
        rows = list(csv.DictReader(io.StringIO(world.read(key).decode())))
        assert [row["id"] for row in rows] == [str(number) for number in range(total)]
    assert world.uploads() == []


def _page(path: str, total: int) -> bytes:
    query = parse_qs(urlsplit(path).query)
    page, size = int(query["page"][0]), int(query["page_size"][0])
    rows = [{"id": number, "name": f"n{number}"} for number in range(page * size, min(total, (page + 1) * size))]
    return json.dumps({"status": 200, "msg": "", "data": {"data": rows, "total": total}}).encode()


SCENARIO = Scenario("export and callback", run)
IN_RANGES = Scenario("export in ranges", lambda world: run(world, MANY))
