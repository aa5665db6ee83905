"""Freeze, restore and thaw end to end, as docs/operations.md describes it: real machines, hosts and sources on moto."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.injection import Calls
from tests.faults.scenarios.distribution import SHA, Agents, stored_file
from tests.faults.world import World
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import ROOT
from tidegate import app as composition
from tidegate.aws import keys
from tidegate.aws.table import from_wire

OVER = {"completed", "failed", "cancelled"}


class Site:
    """A source of files. Counts how often each was fetched."""

    def __init__(self) -> None:
        self.fetched: Counter[str] = Counter()

    def __call__(self, request: Handler) -> None:
        self.fetched[request.path] += request.command == "GET"
        request.answer(200, f"content of {request.path}".encode())


class Place:
    def __init__(self, cloud: MotoCloud, site: Site, port: int) -> None:
        self.cloud, self.site, self.port = cloud, site, port
        self.world = World(cloud, Calls())
        self.project: Project = self.world.new_project()
        stored_file(self.world, self.project)
        self.agents = Agents(self.world, self.project, ("a1", "a2"))
        cloud.while_waiting.append(self.agents.work)

    def ops(self, action: str, **body: Any) -> Any:
        answer = self.cloud.http("POST", f"/v1/ops/{action}", json=body or None, key=self.cloud.admin_key)
        assert answer.status == 200, answer.body
        self.cloud.app.freeze.now()
        return answer.json()

    def file(self, path: str) -> str:
        body = {"biz_id": 1, "app_id": 1, "file_path": path, "source_url": f"http://127.0.0.1:{self.port}{path}"}
        made = self.cloud.http("POST", "/v1/files", key=self.project.key, json=body)
        assert made.status == 202, made.body
        return str(made.json()["request_id"])

    def download(self, agent: str) -> str:
        body: dict[str, Any] = {"biz_id": 1, "app_id": 1, "file_path": "/f", "file_name": "f", "file_signature": SHA}
        body |= {"target_agent_id": agent, "target_user": "root", "target_file_dir": "/data"}
        made = self.cloud.http("POST", "/v1/downloads", key=self.project.key, json=body)
        assert made.status == 202, made.body
        return str(made.json()["task_id"]).rsplit(":", 1)[-1]

    def request(self, request_id: str) -> dict[str, Any]:
        return self.world.shown(f"/v1/requests/{request_id}", self.project)

    def task(self, uuid: str) -> str:
        return str(self.world.shown(f"/v1/downloads/{uuid}", self.project)["status"])

    def settle(self, requests: list[str], tasks: list[str]) -> None:
        self.world.settle(
            lambda: (
                all(self.request(one)["status"] in OVER for one in requests)
                and all(self.task(one) in ("Success", "Failed", "Timeout") for one in tasks)
            )
        )

    def items(self) -> list[dict[str, Any]]:
        pages = self.cloud.client("dynamodb").get_paginator("scan").paginate(TableName=self.cloud.app.table.name)
        return [item for page in pages for item in page["Items"]]

    def restore(self, snapshot: list[dict[str, Any]]) -> None:
        """The table as it was, and new functions that know nothing."""
        name, client = self.cloud.app.table.name, self.cloud.client("dynamodb")
        for item in self.items():
            client.delete_item(TableName=name, Key={"pk": item["pk"], "sk": item["sk"]})
        for item in [*snapshot, item_of_runbook()]:
            client.put_item(TableName=name, Item=item)
        composition.install(composition.App(clock=self.cloud.clock))


def item_of_runbook() -> dict[str, Any]:
    """What the operations page tells to put into a restored table before the stack uses it."""
    text = (ROOT / "docs" / "operations.md").read_text()
    found = re.search(r"aws dynamodb put-item [^\n]*\n?[^\n]*--item '([^']+)'", text)
    assert found, "docs/operations.md has no put-item"
    item: dict[str, Any] = json.loads(found[1])
    return item


@pytest.fixture
def place(running_cloud: MotoCloud) -> Iterator[Place]:
    site = Site()
    with serve(site) as port:
        yield Place(running_cloud, site, port)


def test_runbook_freezes_a_restored_table() -> None:
    item = from_wire(item_of_runbook())
    assert {name: item[name] for name in ("pk", "sk")} == keys.freeze()
    assert item["frozen"] is True


def test_download_during_a_freeze_is_sent_after_the_thaw(place: Place) -> None:
    place.ops("freeze", reason="incident")
    task, request = place.download("a1"), place.file("/during")
    for _ in range(4):
        place.world.deliver_all()
        place.world.wait_for_machines()
        place.cloud.clock.advance(3600)
        place.world.compensate()
        place.cloud.app.freeze.now()
    assert not any(place.agents.got.values())
    assert place.site.fetched == {}
    assert place.task(task) in ("Pending", "Running")

    place.ops("thaw")
    place.settle([request], [task])

    assert (place.task(task), place.request(request)["status"]) == ("Success", "completed")
    assert place.site.fetched == {"/during": 1}


def test_restored_table_ends_all_that_its_snapshot_accepted(place: Place) -> None:
    world, cloud = place.world, place.cloud
    done = place.file("/done")
    place.settle([done], [])
    world.held |= {"AdmissionQueue", "TargetsQueue"}
    with cloud.windows_stay_open():
        accepted, task = place.file("/accepted"), place.download("a1")
        snapshot = place.items()
        world.held.clear()
        world.deliver_all()
    # What happens after the snapshot: the table that is restored does not know it.
    later, lost_task = place.file("/later"), place.download("a2")
    place.settle([accepted, later], [task, lost_task])
    before = place.site.fetched.copy()

    place.ops("freeze", reason="restore")
    place.restore(snapshot)
    assert set(cloud.invoke("clean_up", {"source": "aws.events"}).values()) == {0}
    while place.ops("reconcile")["more"]:
        pass
    place.ops("thaw")
    place.settle([done, accepted], [task])

    shown = place.request(accepted)
    assert (shown["status"], shown["attempts"]) == ("completed", 1), shown
    assert place.task(task) == "Success"
    # Once before and once after the restore: at least once, as everywhere. What had ended is not repeated.
    assert place.site.fetched - before == {"/accepted": 1}
    world.settle(world.idle_channels)
    world.next_day()
    files = cloud.http("GET", "/v1/files", key=place.project.key).json()["items"]
    known = {
        cloud.app.files.store.object_of(place.project.id, one["signature"]) for one in files if one.get("signature")
    }
    assert len(known) >= 2
    assert known <= set(world.objects())


def test_reconcile_stops_executions_that_the_table_does_not_know(place: Place) -> None:
    with place.cloud.windows_stay_open():
        snapshot = place.items()
        place.download("a1")
        place.ops("freeze", reason="restore")
        place.restore(snapshot)
        assert place.ops("reconcile")["stopped"] == 1
    place.world.wait_for_machines()
    assert place.ops("reconcile") == {"stopped": 0, "more": False}
    place.ops("thaw")
    assert not any(place.agents.got.values())
