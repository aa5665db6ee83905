"""A request that reads much of the table counts as several: what a key can cost (docs/security.md) rests on it."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.console_seed import items_of_a_busy_hour
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.distribution.model import RUNNING, Target, job_key
from tidegate.projects.model import AGENT_READ_UNITS, READ_UNITS, USUAL_WRITE_UNITS, WRITE_UNITS
from tidegate.web import api
from tidegate.web.routing import Caller

# What the project may send in a second, and at once.
RATE = 30
# The most that one request of a list reads, beyond what it counts as: it is charged afterwards.
ONE_REQUEST = 500


@pytest.fixture
def project(cloud: MotoCloud) -> Project:
    made = cloud.project()
    limit = {"quotas": {"requests_per_s": RATE}}
    assert cloud.http("PATCH", f"/v1/projects/{made.id}", json=limit, key=cloud.admin_key).status == 200
    return made


def spend(cloud: MotoCloud, key: str, path: str, **query: str) -> tuple[int, float]:
    """Sends requests until one is refused. Returns how many were served, and the units that they read."""
    before = cloud.app.table.units_read
    for served in range(RATE):
        answer = cloud.http("GET", path, query=query, key=key)
        if answer.status == 429:
            assert answer.json()["code"] == "rate_limited"
            return served, cloud.app.table.units_read - before
        assert answer.status == 200, answer.body
    return RATE, cloud.app.table.units_read - before


def put_large_requests(cloud: MotoCloud, project: Project) -> None:
    """Requests of about 500 read units."""
    items = items_of_a_busy_hour(project.id, cloud.clock(), requests=600, jobs=0, files=0)
    cloud.app.table.batch_put({**item, "detail": "x" * 6500} for item in items)


def test_filtered_lists_of_a_project_read_no_more_than_its_rate(cloud: MotoCloud, project: Project) -> None:
    put_large_requests(cloud, project)

    served, units = spend(cloud, project.key, "/v1/queue", status="paused")

    assert 1 < served < RATE / 2
    assert units <= RATE * READ_UNITS + ONE_REQUEST


def test_list_that_finds_nothing_goes_on_with_its_cursor(cloud: MotoCloud, project: Project) -> None:
    put_large_requests(cloud, project)
    cursor, pages = "", 0
    while pages < 100:
        before = cloud.app.table.units_read
        query = {"status": "paused"} | ({"cursor": cursor} if cursor else {})
        page = cloud.http("GET", "/v1/queue", query=query, key=project.key).json()
        assert (page["items"], cloud.app.table.units_read - before <= ONE_REQUEST) == ([], True)
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
        cloud.clock.advance(60)
    assert pages == 2


def named(shard: int, number: int) -> str:
    """Long, and hard to compress."""
    return f"agent-{shard:03d}-{number:03d}-{hashlib.sha256(f'{shard}.{number}'.encode()).hexdigest()}"


@pytest.fixture
def large_job(cloud: MotoCloud, project: Project) -> str:
    """A running Job of 50,000 targets, which were written as its close writes them."""
    fleet = Fleet(cloud, project)
    fleet.to_window_start()
    made = fleet.submit("a-last")
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", made["job_id"])
    d = cloud.app.distribution
    job = d.jobs.require(project.id, job_key(made["job_id"]))
    shards = [[Target(named(n, i), "") for i in range(500)] for n in range(100)]
    d.targets.add_shards(job, [[Target("a-last", "")], *shards[1:]], cloud.clock())
    cloud.app.table.write(update(keys.job(project.id, job.key), {"shard_count": 100}))
    return job.key


def test_targets_by_status_are_found_over_several_bounded_reads(
    cloud: MotoCloud, project: Project, large_job: str
) -> None:
    found, query, calls = [], {"status": RUNNING, "limit": "100"}, 0
    before = cloud.app.table.units_read
    empty = cloud.http("GET", f"/v1/jobs/{large_job}/targets", query={"status": "Failed"}, key=project.key).json()
    assert (empty["items"], empty["next_cursor"]) == ([], "40.0")
    assert cloud.app.table.units_read - before <= ONE_REQUEST
    cloud.clock.advance(60)
    query["cursor"] = "98.400"
    while query["cursor"]:
        page = cloud.http("GET", f"/v1/jobs/{large_job}/targets", query=query, key=project.key).json()
        found += [item["agent_id"] for item in page["items"]]
        query["cursor"], calls = page["next_cursor"], calls + 1
    assert found == [named(98, i) for i in range(400, 500)] + [named(99, i) for i in range(500)]
    assert calls == 6


def test_targets_of_a_large_job_read_no_more_than_the_rate(cloud: MotoCloud, project: Project, large_job: str) -> None:
    served, units = spend(cloud, project.key, f"/v1/jobs/{large_job}/targets", status="Failed")
    assert 1 < served < RATE
    assert units <= RATE * READ_UNITS + ONE_REQUEST


def test_polls_of_a_host_are_charged_by_what_they_read(cloud: MotoCloud, project: Project) -> None:
    key = project.agent_key("a-1")
    before = cloud.app.table.units_read
    assert cloud.http("GET", "/v1/agents/a-1/transfers", key=key).status == 200
    # An idle host pays for one request.
    assert cloud.app.table.units_read - before <= AGENT_READ_UNITS


def test_bulk_change_is_charged_about_one_request_for_each(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the units that it writes, and not once more for each change."""
    queue, charged = TestQueue(cloud, project), list[int]()
    for _ in range(40):
        queue.submit()
    monkeypatch.setattr(cloud.app.projects.rate_limiter, "charge", lambda _, requests: charged.append(requests))
    body = {"action": "cancel", "status": "pending", "limit": 100}
    assert cloud.http("POST", "/v1/requests/bulk", json=body, key=project.key).json()["changed"] == 40
    assert 20 <= sum(charged) <= 50


def test_long_request_delays_the_next_ones(cloud: MotoCloud, project: Project) -> None:
    limiter = cloud.app.projects.rate_limiter
    assert cloud.http("GET", "/v1/jobs", key=project.key).status == 200
    caller = Caller("key-1", project.id, frozenset({"read"}), requests_per_s=RATE)
    api._charge(cloud.app, caller, 16 * 1024, READ_UNITS * 1.25, USUAL_WRITE_UNITS + WRITE_UNITS * 2, 2.5)
    # 0.5 + 1.25 + 2 + 2.5 requests: seven, of which one was taken before.
    assert limiter._shares[project.id].bucket.state[0] == RATE - 1 - 6
