"""States of targets: codes 0, 115 and others, the deadline, and final states that never change."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.response import StreamingBody

from tests.support.fleet import Fleet
from tidegate.files.model import content_object


def test_codes_deadline_and_late_reports_give_the_right_states(fleet: Fleet) -> None:
    agents = ["a-1", "a-2", "a-3", "a-4", "a-5"]
    made = fleet.submit_many(agents)
    job_id = made["job_id"]
    tasks = {task["agent_id"]: task["task_id"] for task in made["tasks"]}
    fleet.run_until_dispatched(job_id)
    offered = {agent: fleet.inbox(agent) for agent in agents}
    for agent in agents[:3]:
        fleet.report(agent, 0)
    fleet.report("a-4", 115, progress=40)
    fleet.report("a-5", 7, error_msg="disk full")

    assert fleet.step("poll_transfer", job_id)["state"] == "running"

    statuses = [fleet.task(tasks[agent])["status"] for agent in agents]
    assert statuses == ["Success", "Success", "Success", "Running", "Failed"]
    failed = fleet.task(tasks["a-5"])
    assert (failed["error_code"], failed["error_msg"]) == (7, "disk full")
    assert fleet.task(tasks["a-4"])["progress"] == 40
    assert fleet.job(job_id)["counts"] == {"total": 5, "success": 3, "failed": 1, "downloading": 1, "timeout": 0}

    fleet.cloud.clock.advance(fleet.cloud.app.distribution.windows.job_timeout + 1)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"

    job = fleet.job(job_id)
    assert job["status"] == "Timeout"
    assert job["counts"] == {"total": 5, "success": 3, "failed": 1, "downloading": 0, "timeout": 1}
    assert fleet.task(tasks["a-4"])["status"] == "Timeout"
    assert fleet.inbox("a-4") == [], "terminated at the provider"

    before = [fleet.task(task_id) for task_id in tasks.values()]
    for agent in ("a-4", "a-5"):
        assert fleet.report(agent, 0, items=offered[agent]).status == 200
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert [fleet.task(task_id) for task_id in tasks.values()] == before
    assert fleet.job(job_id) == job


def test_success_reported_after_a_failure_changes_nothing(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    offered = fleet.inbox("a-1")
    fleet.report("a-1", 1002, items=offered)
    assert fleet.report("a-1", 0, items=offered).status == 200
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    assert fleet.states(job_id) == {"a-1": "Failed"}
    assert fleet.job(job_id)["status"] == "Failed"


def test_job_closed_without_a_target_ends(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.pass_window()
    fleet.step("close_window", job_id)
    assert fleet.step("prepare_file", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert fleet.job(job_id)["counts"]["total"] == 0
    fleet.collect()
    assert len(fleet.get("/v1/jobs")["items"]) == 2


def caught(kind: str, message: str) -> dict[str, str]:
    return {"Error": kind, "Cause": f'{{"errorType": "{kind}", "errorMessage": "{message}"}}'}


def failing_step(fleet: Fleet, job_id: str) -> dict[str, str]:
    """The error that prepare_file returns for finish_job."""
    result = fleet.step("prepare_file", job_id)
    assert result["state"] == "refused", result
    return dict(result["error"])


def test_missing_source_fails_the_job_with_that_reason(fleet: Fleet) -> None:
    made = fleet.submit("a-1")
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", made["job_id"])
    bucket = fleet.cloud.app.files.bucket.name
    fleet.cloud.client("s3").delete_object(Bucket=bucket, Key=content_object(fleet.project.id, fleet.signature))

    fleet.step("finish_job", made["job_id"], error=failing_step(fleet, made["job_id"]))

    job = fleet.job(made["job_id"])
    assert (job["status"], job["error"]["code"]) == ("Failed", "file_not_found")
    task = fleet.task(made["task_id"])
    assert task["status"] == "Failed"
    assert "gone" in task["error_msg"]
    assert job["counts"] == {"total": 1, "success": 0, "failed": 1, "downloading": 0, "timeout": 0}


def test_wrong_checksum_fails_the_job_with_that_reason(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    key = content_object(fleet.project.id, fleet.signature)
    fleet.cloud.client("s3").put_object(Bucket=fleet.cloud.app.files.bucket.name, Key=key, Body=b"not the tide")

    fleet.step("finish_job", job_id, error=failing_step(fleet, job_id))

    job = fleet.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("Failed", "signature_mismatch")
    assert fleet.inbox("a-1") == []


def test_broken_connection_to_s3_does_not_begin_the_check_anew(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    read, broken = StreamingBody.read, list[bool]()

    def breaks_once(body: StreamingBody, *given: Any, **named: Any) -> bytes:
        if not broken:
            broken.append(True)
            raise ReadTimeoutError(endpoint_url="https://s3.test")
        return read(body, *given, **named)

    monkeypatch.setattr(StreamingBody, "read", breaks_once)

    assert fleet.step("prepare_file", job_id)["state"] == "ready"
    assert broken


def test_job_waits_for_a_file_that_is_coming(fleet: Fleet) -> None:
    import hashlib

    content = b"on its way"
    signature = hashlib.sha256(content).hexdigest()
    fleet.content(signature, "coming")
    job_id = fleet.submit("a-1", file_signature=signature)["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    assert fleet.step("prepare_file", job_id) == {"state": "waiting", "wait": 2}
    assert fleet.step("prepare_file", job_id, wait=12) == {"state": "waiting", "wait": 15}

    fleet.store(content)
    assert fleet.step("prepare_file", job_id)["state"] == "ready"


def test_stopped_step_fails_no_target_before_the_deadline(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    assert fleet.step("finish_job", job_id, error=caught("States.Timeout", "late"))["state"] == "running"
    assert fleet.states(job_id) == {"a-1": "Running"}
    fleet.cloud.clock.advance(fleet.cloud.app.distribution.windows.job_timeout)
    assert fleet.step("finish_job", job_id, error=caught("States.Timeout", "late"))["state"] == "ended"
    assert fleet.job(job_id)["status"] == "Timeout"


def test_every_transition_of_a_job_is_in_the_audit_trail(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.step("close_window", job_id)
    fleet.report("a-1", 0)
    fleet.cloud.clock.advance(2)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    lines = fleet.get("/v1/audit", record=job_id)["items"]
    assert [(line["from"], line["to"]) for line in lines] == [("Running", "Success"), ("Pending", "Running")]


def test_superseded_is_a_status_of_its_own(fleet: Fleet) -> None:
    made = fleet.submit("a-1")
    fleet.run_until_dispatched(made["job_id"])
    fleet.report("a-1", 409, error_msg="superseded by newer content")
    fleet.step("poll_transfer", made["job_id"])
    fleet.step("finish_job", made["job_id"])

    job, task = fleet.job(made["job_id"]), fleet.task(made["task_id"])
    assert (task["status"], task["error_code"], task["error_msg"]) == ("Superseded", 409, "superseded by newer content")
    assert job["status"] == "Superseded"
    assert job["counts"] == {"total": 1, "success": 0, "failed": 0, "timeout": 0, "downloading": 0, "superseded": 1}
    assert fleet.get(f"/v1/jobs/{job['key']}/map")["states"] == "N"
    assert [one["key"] for one in fleet.get("/v1/jobs", status="Superseded")["items"]] == [job["key"]]
    assert len(fleet.get(f"/v1/jobs/{job['key']}/targets", status="Superseded")["items"]) == 1


def test_job_with_a_failed_and_a_superseded_target_has_failed(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 409)
    fleet.report("a-2", 5)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)

    assert fleet.job(job_id)["status"] == "Failed"
