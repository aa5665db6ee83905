"""A subscription is scanned by its schedule, its files are ingested, and it is deleted."""

from __future__ import annotations

from contextlib import suppress

from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.injection import Died
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.ingest.sources import Hosted, file_source
from tests.support.moto.cloud import Project
from tidegate.common.ids import iso

FILES = {"/a": b"first", "/b": b"second"}
OVER = {"completed", "failed", "cancelled"}


def run(world: World) -> None:
    project = world.new_project()
    with file_source() as source:
        source.files = {path: Hosted(body) for path, body in FILES.items()}
        source.files["/list.json"] = Hosted(b'["/a", "/b"]', content_type="application/json")
        body = {"name": "s", "source_url": source.url("/list.json"), "schedule": "rate(7 days)"}
        made = world.ask("POST", "/v1/subscriptions", key=project.key, json=body)
        assert made.status == 201, made.body
        world.cloud.clock.advance(7 * 24 * 3600 + 1)
        fire(world)

        def ready() -> list[str]:
            listed = world.shown("/v1/files?limit=100", project)["items"]
            return [file["file_path"] for file in listed if file["state"] == "ready"]

        world.settle(lambda: set(ready()) == set(FILES))
        assert world.repeated or len(ready()) == len(FILES), "a file was queued twice"

        path = f"/v1/subscriptions/{made.json()['subscription_id']}"
        held = world.shown(f"{path}/tasks?limit=100", project)["items"]
        check_run(world, project, path, [task["request_id"] for task in held if task["type"] == "scan"])
        gone = world.ask("DELETE", path, key=project.key)
        assert gone.status == 204 or (world.repeated and gone.status == 404), gone.body
        world.settle(
            lambda: all(world.shown(f"/v1/requests/{task['request_id']}", project)["status"] in OVER for task in held)
        )
        world.settle(lambda: world.idle_channels())
    assert world.uploads() == []


def check_run(world: World, project: Project, path: str, scans: list[str]) -> None:
    """The one planned time was run once, and is recorded with its scan."""
    runs = world.shown(f"{path}/runs", project)["items"]
    assert [(run["state"], run["request_id"]) for run in runs] == [("started", scan) for scan in scans], (runs, scans)
    assert len(scans) == 1, "the schedule was run twice"
    shown = world.shown(path, project)
    assert shown["next_run"] > iso(world.cloud.clock()), shown
    assert (shown["last_run"], shown["failed_runs"]) == (runs[0]["due"], 0), shown


def fire(world: World) -> None:
    """Runs the function of the schedule every minute."""
    for _ in range(4):
        with suppress(Died, ClientError, BotoCoreError):
            world.cloud.invoke("scan_subscriptions", {"source": "aws.events"})
        world.cloud.clock.advance(60)


SCENARIO = Scenario("subscription", run)
