"""The note of a Job."""

from __future__ import annotations

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud


def test_note_of_the_first_request_that_has_one_is_the_jobs(fleet: Fleet) -> None:
    made = fleet.submit("a-1")
    fleet.submit("a-2", note="ticket 17")
    fleet.submit("a-3", note="another")
    assert fleet.job(made["job_id"])["note"] == "ticket 17"
    assert fleet.task(made["task_id"])["note"] == "ticket 17"


def test_job_opened_with_a_note_shows_it_in_lists(fleet: Fleet) -> None:
    fleet.submit_many(["a-1", "a-2"], note="上线")
    assert [job["note"] for job in fleet.get("/v1/jobs")["items"]] == ["上线"]


def test_note_is_changed_and_removed_with_an_audit_line(fleet: Fleet, cloud: MotoCloud) -> None:
    made = fleet.submit("a-1", note="first")
    path, key = f"/v1/jobs/{fleet.job(made['job_id'])['key']}", fleet.project.key
    assert cloud.http("PATCH", path, json={"note": "second"}, key=key).json()["note"] == "second"
    assert fleet.job(made["job_id"])["note"] == "second"
    lines = [line for line in fleet.get("/v1/audit")["items"] if line["action"] == "job.change"]
    assert [(line["record"], line["why"]) for line in lines] == [(made["job_id"], "note second")]
    assert cloud.http("PATCH", path, json={"note": None}, key=key).status == 200
    assert fleet.job(made["job_id"])["note"] is None
    assert cloud.http("PATCH", path, json={"note": "x" * 501}, key=key).status == 422
    assert cloud.http("PATCH", "/v1/jobs/none", json={"note": "x"}, key=key).status == 404


def test_redriven_job_has_the_note_of_the_first(fleet: Fleet, cloud: MotoCloud) -> None:
    made = fleet.submit("a-1", note="ticket 17")
    fleet.run_until_dispatched(made["job_id"])
    fleet.deliver_all(made["job_id"], 1)
    assert fleet.step("poll_transfer", made["job_id"])["state"] == "over"
    fleet.step("finish_job", made["job_id"])
    path = f"/v1/jobs/{fleet.job(made['job_id'])['key']}/redrive"
    redriven = cloud.http("POST", path, key=fleet.project.key)
    assert redriven.status == 202, redriven.body
    assert fleet.job(redriven.json()["job_id"])["note"] == "ticket 17"
