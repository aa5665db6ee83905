"""A subscription is scanned by its schedule, its files are ingested, and it is deleted."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from tests.faults.injection import Died
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.ingest.sources import Hosted, file_source

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

        held = world.shown(f"/v1/subscriptions/{made.json()['subscription_id']}/tasks?limit=100", project)["items"]
        gone = world.ask("DELETE", f"/v1/subscriptions/{made.json()['subscription_id']}", key=project.key)
        assert gone.status == 204 or (world.repeated and gone.status == 404), gone.body
        world.settle(
            lambda: all(world.shown(f"/v1/requests/{task['request_id']}", project)["status"] in OVER for task in held)
        )
        world.settle(lambda: world.idle_channels())
    assert world.uploads() == []


def fire(world: World) -> None:
    """Runs the function of the schedule, again after a minute if it fails."""
    for _ in range(3):
        try:
            world.cloud.invoke("scan_subscriptions", {"source": "aws.events"})
        except (Died, ClientError, BotoCoreError):
            world.cloud.clock.advance(60)


SCENARIO = Scenario("subscription", run)
