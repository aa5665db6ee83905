"""Targets selected by group or label, in any number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fleet import Fleet, collect, messages
from tidegate.aws.clients import Message, SqsQueue
from tidegate.distribution import fleet as hosts_module
from tidegate.distribution import submit as submits
from tidegate.distribution.fleet import FleetStore
from tidegate.distribution.model import FleetAgent, Inventory


def add_host(fleet: Fleet, agent_id: str, groups: list[str], **labels: str) -> None:
    fleet.cloud.app.distribution.fleet_store.note_seen(fleet.project.id, agent_id, fleet.cloud.clock())
    body = {"groups": groups, "labels": labels}
    assert fleet.cloud.http("PATCH", f"/v1/agents/{agent_id}", json=body, key=fleet.project.key).status == 200


@pytest.fixture
def hosts(fleet: Fleet) -> None:
    add_host(fleet, "w-1", ["web"], os="debian")
    add_host(fleet, "w-2", ["web", "canary"], os="alpine")
    add_host(fleet, "d-1", ["db"], os="debian")


def send(fleet: Fleet, **selection: Any) -> Any:
    return fleet.post("/v1/downloads/batch", fleet.body(**selection))


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"groups": ["web"]}, {"w-1", "w-2"}),
        ({"groups": ["canary", "db"]}, {"w-2", "d-1"}),
        ({"labels": {"os": "debian"}}, {"w-1", "d-1"}),
        ({"groups": ["web"], "labels": {"os": "debian"}}, {"w-1"}),
    ],
)
def test_groups_and_labels_select_hosts(fleet: Fleet, selection: dict[str, Any], expected: set[str]) -> None:
    answer = send(fleet, **selection)

    assert answer.status == 202, answer.body
    assert {task["agent_id"] for task in answer.json()["tasks"]} == expected
    assert answer.json()["targets"] == len(expected)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    "selection", [{}, {"groups": ["nobody"]}, {"groups": []}, {"targets": [{"agent_id": "a"}], "groups": ["web"]}]
)
def test_empty_or_ambiguous_selection_is_422(fleet: Fleet, selection: dict[str, Any]) -> None:
    assert send(fleet, **selection).status == 422


@pytest.mark.usefixtures("hosts")
def test_selection_above_the_limit_of_a_job_is_422(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "MOST_SELECTED", 1)

    answer = send(fleet, groups=["web"])

    assert answer.status == 422
    assert "2 agents have web, but a Job takes 1 at most" in answer.json()["detail"]


def test_selection_reads_groups_and_labels_only(fleet: Fleet) -> None:
    """Reading 100,000 whole records would exceed the API's time-out."""
    store = fleet.cloud.app.distribution.fleet_store
    store.connected(fleet.project.id, "h-1", "c-1", Inventory("1.0", "z", 7), fleet.cloud.clock())
    add_host(fleet, "h-1", ["all"], os="debian")

    (host,) = store.memberships(fleet.project.id)

    assert host == FleetAgent(fleet.project.id, "h-1", ("all",), {"os": "debian"})


def test_hundred_thousand_hosts_are_submitted_in_a_hundred_calls(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    count = hosts_module.MOST_SELECTED
    everyone = [FleetAgent(fleet.project.id, f"host-{n:06d}.prod.example.com", ("all",)) for n in range(count)]
    sent: list[Sequence[Message]] = []
    monkeypatch.setattr(FleetStore, "memberships", lambda *_: iter(everyone))
    monkeypatch.setattr(SqsQueue, "_send_batch", lambda _, messages: sent.append(messages))

    answer = send(fleet, groups=["all"])

    assert answer.status == 202, answer.body
    assert (answer.json()["tasks"], answer.json()["targets"]) == ([], count)
    assert len(sent) == 100
    assert max(sum(len(json.dumps(message.body)) for message in batch) for batch in sent) < 256 * 1024
    assert sum(len(message.body["targets"]) for batch in sent for message in batch) == count


def test_tasks_of_a_large_selection_are_written_by_collect_targets(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submits, "TASKS_A_SUBMIT", 2)
    for number in range(5):
        add_host(fleet, f"h-{number}", ["all"])

    answer = send(fleet, groups=["all"], callback="http://127.0.0.1:9/x").json()
    records = messages(fleet)
    collect(fleet, records)
    # A repeated delivery changes nothing.
    collect(fleet, records)

    assert (answer["tasks"], answer["targets"]) == ([], 5)
    tasks = fleet.tasks_of(answer["job_id"])
    assert sorted(task["target_agent_id"] for task in tasks) == [f"h-{number}" for number in range(5)]
    fleet.pass_window()
    fleet.step("close_window", answer["job_id"])
    assert fleet.job(answer["job_id"])["counts"]["total"] == 5


def test_late_message_does_not_overwrite_a_moved_task(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submits, "TASKS_A_SUBMIT", 0)
    add_host(fleet, "h-1", ["all"])
    answer = send(fleet, groups=["all"]).json()
    records = messages(fleet)
    fleet.pass_window()
    fleet.step("close_window", answer["job_id"])

    collect(fleet, records)
    collect(fleet, records)

    page = fleet.get("/v1/downloads", limit=100)["items"]
    (task,) = [item for item in page if item["target_agent_id"] == "h-1"]
    assert task["job_id"] != answer["job_id"]
    assert task["status"] == "Pending"
