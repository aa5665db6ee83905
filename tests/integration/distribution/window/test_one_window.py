"""Submits of one window share a Job and a transfer, with one delivery for each target."""

from __future__ import annotations

from tests.support.fleet import Fleet


def test_200_targets_in_one_window_share_one_job_and_transfer(fleet: Fleet) -> None:
    agents = [f"a-{n}" for n in range(200)]
    first = fleet.submit_many(agents[:100])
    second = fleet.submit_many(agents[100:])
    assert first["job_id"] == second["job_id"]
    job_id = first["job_id"]

    fleet.run_until_dispatched(job_id)
    assert sorted(fleet.deliver_all(job_id)) == sorted(agents)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"

    job = fleet.job(job_id)
    assert job["status"] == "Success"
    assert job["counts"] == {"total": 200, "success": 200, "failed": 0, "downloading": 0, "timeout": 0}
    assert len(fleet.get("/v1/jobs")["items"]) == 1
    seen = {task["task_id"]: task["status"] for task in fleet.tasks_of(job_id)}
    assert seen == {task["task_id"]: "Success" for task in [*first["tasks"], *second["tasks"]]}


def test_five_submits_of_one_target_are_delivered_once(fleet: Fleet) -> None:
    made = [fleet.submit("a-1") for _ in range(5)]
    assert len({task["task_id"] for task in made}) == 5
    (job_id,) = {task["job_id"] for task in made}

    fleet.run_until_dispatched(job_id)
    assert len(fleet.inbox("a-1")) == 1
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)

    assert fleet.job(job_id)["counts"]["total"] == 1
    assert [fleet.task(task["task_id"])["status"] for task in made] == ["Success"] * 5


def test_two_contents_of_one_path_in_one_window_are_two_jobs(fleet: Fleet) -> None:
    other = fleet.store(b"another tide")
    one = fleet.submit("a-1")
    two = fleet.submit("a-2", file_signature=other)
    again = fleet.submit("a-3", file_signature=other)

    assert one["job_id"] != two["job_id"] == again["job_id"]
    base, bucket = one["job_id"].rsplit(":", 1)
    assert two["job_id"].startswith(base + "@")
    assert two["job_id"].endswith(":" + bucket)
    fleet.run_until_dispatched(one["job_id"])
    for name in ("close_window", "prepare_file", "dispatch_transfer"):
        fleet.step(name, two["job_id"])
    assert {agent: fleet.inbox(agent)[0]["signature"] for agent in ("a-1", "a-2", "a-3")} == {
        "a-1": fleet.signature,
        "a-2": other,
        "a-3": other,
    }
