"""GET routes and lists of the HTTP contract."""

from __future__ import annotations

from urllib.parse import quote

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.distribution.model import OUTAGE_SECONDS


def test_task_is_found_by_uuid_or_whole_id(fleet: Fleet) -> None:
    made = fleet.submit("a-1", target_container_id="c-1")
    by_uuid = fleet.task(made["task_id"])
    by_id = fleet.get(f"/v1/downloads/{quote(made['task_id'], safe='')}")
    decoded = fleet.get(f"/v1/downloads/{made['task_id']}")
    assert by_uuid == by_id == decoded
    times = {by_uuid.pop("create_time"), by_uuid.pop("update_time")}
    assert len(times) == 1
    assert by_uuid == {
        "task_id": made["task_id"],
        "job_id": made["job_id"],
        "biz_id": 1,
        "app_id": 2,
        "file_path": "/data/app.bin",
        "file_name": "app.bin",
        "file_signature": fleet.signature,
        "target_agent_id": "a-1",
        "target_container_id": "c-1",
        "target_file_dir": "/opt/app",
        "target_user": "root",
        "status": "Pending",
        **dict.fromkeys(("error_code", "error_msg", "progress", "size", "speed", "start_time", "end_time")),
        **dict.fromkeys(("activate_at", "staged_at", "arrived", "note", "mode", "limit_rate", "redrive_of")),
        "release": None,
        "force": None,
    }
    assert made["status"] == "Pending"


def test_whole_task_id_with_another_path_is_404(fleet: Fleet, cloud: MotoCloud) -> None:
    uuid = fleet.submit("a-1")["task_id"].rsplit(":", 1)[1]
    other = quote(f"AsyncDownloadTask:9:9:/other:{uuid}", safe="")
    assert cloud.http("GET", f"/v1/downloads/{other}", key=fleet.project.key).status == 404


def test_collecting_job_shows_its_targets_by_key_or_id(fleet: Fleet) -> None:
    made = fleet.submit_many(["a-1", "a-2", "a-1"])
    fleet.collect()
    job = fleet.job(made["job_id"])
    assert job == fleet.get(f"/v1/jobs/{quote(made['job_id'], safe='')}") == fleet.get(f"/v1/jobs/{made['job_id']}")
    assert (job["status"], job["counts"]["total"]) == ("Pending", 2)
    assert job["window_closes_at"] == made["window_closes_at"]
    assert fleet.states(made["job_id"]) == {"a-1": "Pending", "a-2": "Pending"}
    assert fleet.get(f"/v1/jobs/{made['job_id']}/targets", limit=1)["next_cursor"]


def test_task_lists_are_newest_first_without_gaps_or_repeats(fleet: Fleet) -> None:
    made = []
    for number in range(7):
        made.append(fleet.submit(f"a-{number}")["task_id"])
        fleet.cloud.clock.advance(0.01)
    job_id = fleet.task(made[0])["job_id"]
    for query in ({}, {"job_id": job_id}, {"status": "Pending"}):
        seen: list[str] = []
        more: dict[str, str] = {}
        for _ in range(4):
            page = fleet.get("/v1/downloads", limit=3, **query, **more)
            seen += [task["task_id"] for task in page["items"]]
            if page["next_cursor"] is None:
                break
            more = {"cursor": page["next_cursor"]}
        assert seen == made[::-1], query
    assert fleet.get("/v1/downloads", status="Success") == {"items": [], "next_cursor": None}


def test_task_lists_filter_by_the_status_from_their_job(fleet: Fleet) -> None:
    job_id = fleet.submit_many([f"a-{n}" for n in range(5)])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-0", 0)
    fleet.report("a-1", 9)
    fleet.step("poll_transfer", job_id)
    by_status = {
        status: {task["target_agent_id"] for task in fleet.get("/v1/downloads", job_id=job_id, status=status)["items"]}
        for status in ("Success", "Failed", "Running", "Pending")
    }
    expected = {"Success": {"a-0"}, "Failed": {"a-1"}, "Running": {"a-2", "a-3", "a-4"}, "Pending": set()}
    assert by_status == expected
    path = f"/v1/jobs/{fleet.job(job_id)['key']}/targets"
    failed = fleet.get(path, status="Failed")["items"]
    assert [(target["agent_id"], target["error_code"]) for target in failed] == [("a-1", 9)]
    assert len(fleet.get(path, status="Running", limit=2)["items"]) == 2


def test_jobs_are_found_by_path_and_status(fleet: Fleet) -> None:
    first = fleet.submit("a-1")["job_id"]
    fleet.cloud.clock.advance(1)
    second = fleet.submit("a-1", file_path="/data/other.bin")["job_id"]
    fleet.run_until_dispatched(first)
    found = fleet.get("/v1/jobs")["items"]
    assert [job["job_id"] for job in found] == [second, first]
    at_path = fleet.get("/v1/jobs", biz_id=1, app_id=2, file_path="/data/app.bin")["items"]
    assert [job["job_id"] for job in at_path] == [first]
    assert [job["job_id"] for job in fleet.get("/v1/jobs", status="Running")["items"]] == [first]
    assert fleet.get("/v1/jobs", biz_id=7)["items"] == []


def test_another_project_sees_neither_tasks_nor_jobs(fleet: Fleet, cloud: MotoCloud) -> None:
    made = fleet.submit("a-1")
    stranger = Fleet(cloud)
    for path in (f"/v1/downloads/{made['task_id'].rsplit(':', 1)[1]}", f"/v1/jobs/{fleet.job(made['job_id'])['key']}"):
        assert cloud.http("GET", path, key=stranger.project.key).status == 404
    assert stranger.get("/v1/downloads")["items"] == stranger.get("/v1/jobs")["items"] == []
    assert stranger.submit("a-1")["job_id"] == made["job_id"], "the same id in another project"
    assert len(stranger.get("/v1/downloads")["items"]) == 1


def test_inbox_entry_has_all_fields_for_the_agent(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1", target_container_id="c-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    (item,) = fleet.inbox("a-1", wait=1)
    url = item.pop("url")
    assert "X-Amz-Signature" in url
    assert item.pop("expires_at") > fleet.job(job_id)["execute_time"]
    assert item == {
        "transfer_id": fleet.job(job_id)["transfer_id"],
        "container_id": "c-1",
        "file_name": "app.bin",
        "target_file_dir": "/opt/app",
        "target_user": "root",
        "signature": fleet.signature,
        "size": 10_000,
        "job_id": job_id,
        "sequence": (fleet.cloud.app.table.get(keys.job(fleet.project.id, fleet.job(job_id)["key"])) or {})["sequence"],
        "mode": None,
        "spread_s": None,
        "swarm": None,
        "limit_rate": None,
        "activate_at": None,
        "release": None,
        "force": None,
        "activate_until": None,
        "staged_at": None,
    }


def test_every_answer_has_a_new_link(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    first = fleet.inbox("a-1")[0]["expires_at"]
    fleet.cloud.clock.advance(300)
    assert fleet.inbox("a-1")[0]["expires_at"] > first


def test_expired_entry_is_not_offered_and_is_removed(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    (entry,) = fleet.cloud.app.distribution.inbox.inbox(fleet.project.id, "a-1")

    (left,) = fleet.cloud.app.table.query(keys.inbox(fleet.project.id, "a-1"), index="gsi1").items
    assert left["expires_at"] == entry.until + fleet.cloud.app.distribution.windows.ttl + OUTAGE_SECONDS
    fleet.cloud.clock.advance(entry.until - fleet.cloud.clock().timestamp() + 1)

    assert fleet.inbox("a-1") == []
    assert fleet.cloud.app.table.query(keys.inbox(fleet.project.id, "a-1"), index="gsi1").items == []


def test_empty_inbox_is_polled_until_the_wait_is_over(fleet: Fleet) -> None:
    slept: list[float] = []
    fleet.cloud.app.distribution.agents._sleep = slept.append
    assert fleet.inbox("a-1", wait=3) == []
    assert sum(slept) == 3


def test_same_idempotency_key_creates_one_task(fleet: Fleet) -> None:
    body = fleet.body(target_agent_id="a-1")
    answers = [fleet.post("/v1/downloads", body, headers={"idempotency-key": "once"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert len(fleet.get("/v1/downloads")["items"]) == 1


def test_openapi_has_the_submit_routes(fleet: Fleet, cloud: MotoCloud) -> None:
    paths = cloud.http("GET", "/openapi.json").json()["paths"]
    assert "post" in paths["/v1/downloads"]
    assert "post" in paths["/v1/downloads/batch"]


def test_many_tasks_are_read_by_id_in_a_few_calls(fleet: Fleet, cloud: MotoCloud) -> None:
    ids = [fleet.submit(f"a-{number}")["task_id"] for number in range(12)]
    uuid = ids[0].rsplit(":", 1)[1]
    lookup, project_id = cloud.app.distribution.lookup, fleet.project.id
    wanted = [*ids, uuid, f"AsyncDownloadTask:9:9:/other:{uuid}", "AsyncDownloadTask:1:2:/data/app.bin:none"]

    with count_calls(cloud.app) as calls:
        found = lookup.tasks_by_id(project_id, wanted)

    assert found == {one: lookup.task(project_id, one) for one in [*ids, uuid]}
    assert calls.total() <= 3


def test_map_has_one_letter_per_target(fleet: Fleet) -> None:
    made = fleet.submit_many(["a-1", "a-2", "a-3"])
    fleet.collect()
    waiting = fleet.get(f"/v1/jobs/{made['job_id']}/map")
    assert (sorted(waiting["names"]), waiting["states"]) == (["a-1", "a-2", "a-3"], "WWW")

    fleet.run_until_dispatched(made["job_id"])
    fleet.report("a-1", 0)
    fleet.report("a-2", 2)
    fleet.step("poll_transfer", made["job_id"])
    found = fleet.get(f"/v1/jobs/{made['job_id']}/map")

    assert dict(zip(found["names"], found["states"], strict=True)) == {"a-1": "S", "a-2": "F", "a-3": "W"}
    assert found["next_shard"] is None
