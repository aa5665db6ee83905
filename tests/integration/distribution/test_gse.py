"""The GSE engine against a fake GSE over real HTTP: calls, codes, terminations, and all kinds of lost answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.support.fleet import Fleet
from tests.support.gse_server import GseServer, gse_server
from tests.support.moto.cloud import MotoCloud
from tidegate import app as composition
from tidegate.distribution import gse as engine
from tidegate.distribution.model import Target, job_key
from tidegate.http.model import Limits
from tidegate_client.agent.codes import Code
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.preheat import result_of

# Long enough for a busy machine. Only a call that is never answered has to run into its time-out.
LIMITS = Limits(connect=30, read=30, total=60, max_bytes=1 << 20)
Trouble = Callable[[str, int | str], AbstractContextManager[None]]
SECRET = {"bk_app_code": "tidegate", "bk_app_secret": "s3cret", "bk_username": "admin"}


@pytest.fixture
def gse(monkeypatch: pytest.MonkeyPatch) -> Iterator[GseServer]:
    monkeypatch.setattr(engine, "_LIMITS", LIMITS)
    with gse_server() as server:
        yield server


@pytest.fixture
def fleet(cloud: MotoCloud, gse: GseServer) -> Fleet:
    settings = replace(
        cloud.app.settings,
        transfer_engine="gse",
        gse_base_url=gse.base_url,
        gse_source_agent_id="source",
        gse_store_dir="/store",
        gse_tenant_id="t1",
    )
    composition.install(composition.App(settings, cloud.clock))
    with suppress(cloud.app.secretsmanager.exceptions.ResourceExistsException):
        cloud.app.secretsmanager.create_secret(
            Name=cloud.app.settings.gse_credentials_id, SecretString=json.dumps(SECRET)
        )
    made = Fleet(cloud)
    made.to_window_start()
    grant(made, targets=["a-*", "a-*/*"], dirs=["/opt/app"], users=["root"])
    return made


def grant(fleet: Fleet, **lists: list[str]) -> None:
    path = f"/v1/projects/{fleet.project.id}"
    answer = fleet.cloud.http("PATCH", path, json={"gse": lists}, key=fleet.cloud.admin_key)
    assert answer.status == 200, answer.body


@pytest.fixture
def trouble(gse: GseServer, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    @contextmanager
    def meets(call: str, kind: int | str) -> Iterator[None]:
        with monkeypatch.context() as patched, gse.in_trouble(call, kind):
            if kind == "hang":
                patched.setattr(engine, "_LIMITS", replace(LIMITS, read=0.3))
            yield

    return meets


def stage(fleet: Fleet, job_id: str) -> None:
    """Collects, closes, and lets the source host fetch the file."""
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    assert fleet.step("prepare_file", job_id)["state"] == "waiting"
    fleet.report("source", 0)
    assert fleet.step("prepare_file", job_id)["state"] == "ready"


def test_source_host_fetches_the_file_once_and_gse_sends_it(fleet: Fleet, gse: GseServer) -> None:
    answer = fleet.post(
        "/v1/downloads/batch",
        fleet.body(targets=[{"agent_id": "a-1"}, {"agent_id": "a-2", "container_id": "c-9"}]),
    )
    job_id = answer.json()["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    assert fleet.step("prepare_file", job_id)["state"] == "waiting"
    (entry,) = fleet.inbox("source")
    assert (entry["file_name"], entry["target_file_dir"]) == (fleet.signature, "/store")
    fleet.report("source", 0)
    assert fleet.step("prepare_file", job_id)["state"] == "ready"
    assert fleet.inbox("source") == []

    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    ((name, body, headers),) = gse.calls
    assert name == "async_transfer_file"
    assert json.loads(headers["x-bkapi-authorization"]) == SECRET
    assert headers["x-bk-tenant-id"] == "t1"
    assert 0 < body.pop("timeout_seconds") <= 600
    agent = {"user": "root", "bk_agent_id": "source", "bk_container_id": ""}
    targets = [
        {"user": "root", "bk_agent_id": "a-1", "bk_container_id": ""},
        {"user": "root", "bk_agent_id": "a-2", "bk_container_id": "c-9"},
    ]
    assert body == {
        "auto_mkdir": True,
        "upload_speed": 0,
        "download_speed": 0,
        "tasks": [
            {
                "source": {"file_name": fleet.signature, "store_dir": "/store", "agent": agent},
                "target": {"file_name": "app.bin", "store_dir": "/opt/app", "agents": targets},
            }
        ],
    }
    assert fleet.job(job_id)["transfer_id"] == "gse-1"

    fleet.cloud.clock.advance(20)
    later = fleet.submit("a-3")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", later)
    assert fleet.step("prepare_file", later)["state"] == "ready", "it is on the source host already"


def test_unfinished_targets_alone_are_terminated_at_the_deadline(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many([f"a-{n}" for n in range(1, 6)])["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.set(0, "a-1", "a-2", "a-3")
    gse.set(115, "a-4", progress=40)
    gse.set(7, "a-5", message="disk full")
    assert fleet.step("poll_transfer", job_id)["state"] == "running"
    states = {"a-1": "Success", "a-2": "Success", "a-3": "Success", "a-4": "Running", "a-5": "Failed"}
    assert fleet.states(job_id) == states

    fleet.cloud.clock.advance(601)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)

    assert gse.terminated == [("gse-1", [("a-4", "")])]
    assert fleet.states(job_id) == states | {"a-4": "Timeout"}
    gse.set(0)
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == states | {"a-4": "Timeout"}


@pytest.mark.parametrize("unit", [1, 1000], ids=["seconds", "milliseconds"])
def test_targets_show_the_size_speed_and_times_that_gse_reports(fleet: Fleet, gse: GseServer, unit: int) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.set(0, "a-1", size=10_000, speed=5_000, start_time=1_700_000_000 * unit, end_time=1_700_000_002 * unit)
    gse.set(0, "a-2", size="?", speed=-1, start_time=None, end_time=2**62)
    fleet.step("poll_transfer", job_id)

    targets = {one["agent_id"]: one for one in fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/targets")["items"]}

    names = ("size", "speed", "start_time", "end_time")
    shown = (10_000, 5_000, "2023-11-14T22:13:20.000Z", "2023-11-14T22:13:22.000Z")
    assert tuple(targets["a-1"][name] for name in names) == shown
    assert [targets["a-2"].get(name) for name in names] == [None] * 4


def test_failed_upload_fails_every_target(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.fail_upload(119, "source file gone")
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)
    assert fleet.states(job_id) == {"a-1": "Failed", "a-2": "Failed"}
    assert fleet.job(job_id)["status"] == "Failed"


@pytest.mark.parametrize("kind", [500, 502, 503, 504, 429, "hang", "lose"])
def test_120_s_without_an_answer_fail_no_target(
    fleet: Fleet, gse: GseServer, trouble: Trouble, kind: int | str
) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    with trouble("get_transfer_file_result", kind):
        for _ in range(2 if isinstance(kind, str) else 8):
            fleet.cloud.clock.advance(15)
            assert fleet.step("poll_transfer", job_id)["state"] == "running"
    assert fleet.states(job_id) == {"a-1": "Running"}

    gse.set(0)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.states(job_id) == {"a-1": "Success"}


@pytest.mark.parametrize("kind", [500, 503, 429])
def test_transfer_that_gse_did_not_accept_is_created_again(
    fleet: Fleet, gse: GseServer, trouble: Trouble, kind: int
) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    with trouble("async_transfer_file", kind):
        for wait in (2, 3):
            assert fleet.step("dispatch_transfer", job_id, wait=wait - 2 or 2)["state"] == "waiting"
    assert fleet.step("dispatch_transfer", job_id) == {"state": "dispatched", "wait": 2}
    assert len(gse.transfers) == 1
    assert fleet.states(job_id) == {"a-1": "Running"}


def test_transfer_is_created_again_after_gse_was_unreachable(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    there = fleet.cloud.app.distribution.engine._config  # type: ignore[attr-defined]
    fleet.cloud.app.distribution.engine._config = replace(there, base_url="http://127.0.0.1:1")  # type: ignore[attr-defined]
    assert fleet.step("dispatch_transfer", job_id)["state"] == "waiting"
    fleet.cloud.app.distribution.engine._config = there  # type: ignore[attr-defined]
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    assert len(gse.transfers) == 1


@pytest.mark.parametrize("kind", ["lose", "hang", 502, 504])
def test_create_whose_answer_was_lost_is_sent_again(
    fleet: Fleet, gse: GseServer, trouble: Trouble, kind: int | str
) -> None:
    made = fleet.submit("a-1")
    job_id = made["job_id"]
    stage(fleet, job_id)
    with trouble("async_transfer_file", kind):
        assert fleet.step("dispatch_transfer", job_id)["state"] == "waiting"
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    first, *again = (body["tasks"] for name, body, _ in gse.calls if name == "async_transfer_file")
    assert again == [first], "the same content to the same targets"
    gse.set(0)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)
    assert fleet.task(made["task_id"])["status"] == "Success"


def test_create_that_is_never_answered_is_sent_three_times_and_times_out(
    fleet: Fleet, gse: GseServer, trouble: Trouble
) -> None:
    made = fleet.submit("a-1")
    job_id = made["job_id"]
    stage(fleet, job_id)
    with trouble("async_transfer_file", "lose"):
        states = [fleet.step("dispatch_transfer", job_id)["state"] for _ in range(5)]
    assert states == ["waiting", "waiting", "dispatched", "dispatched", "dispatched"]
    assert gse.count("async_transfer_file") == 3

    fleet.cloud.clock.advance(601)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)
    task = fleet.task(made["task_id"])
    assert task["status"] == "Timeout"
    assert "answer" in task["error_msg"]


@pytest.mark.parametrize("lost", [1, 3])
def test_cancelled_job_with_a_lost_answer_says_hosts_may_get_it(
    fleet: Fleet, gse: GseServer, trouble: Trouble, lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it was sent again with an answer: only that one can be terminated."""
    made = fleet.submit("a-1")
    job_id = made["job_id"]
    stage(fleet, job_id)
    for _ in range(lost):
        with trouble("async_transfer_file", "lose"):
            fleet.step("dispatch_transfer", job_id)
    assert capsys.readouterr().out.count('"TransferAnswersLost"') >= lost
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    answer = fleet.cloud.http("POST", f"/v1/jobs/{fleet.job(job_id)['key']}/cancel", key=fleet.project.key)
    assert answer.status == 202
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)

    assert len(gse.terminated) == (lost < 3)
    job = fleet.job(job_id)
    assert job["status"] == "Cancelled"
    assert "hosts may still get the file until 20" in job["error"]["detail"]
    assert "nobody can stop" in fleet.task(made["task_id"])["error_msg"]


def test_cancelled_job_whose_answers_came_says_nothing_of_it(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    fleet.cloud.http("POST", f"/v1/jobs/{fleet.job(job_id)['key']}/cancel", key=fleet.project.key)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    assert "may still get" not in fleet.job(job_id)["error"]["detail"]


def test_transfer_of_a_dispatcher_that_died_is_created_again(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    store = fleet.cloud.app.distribution.transfers
    settle, store.settle = store.settle, lambda *_, **__: (_ for _ in ()).throw(RuntimeError("died"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        fleet.step("dispatch_transfer", job_id)
    store.settle = settle  # type: ignore[method-assign]

    assert fleet.step("dispatch_transfer", job_id)["state"] == "waiting"
    assert gse.count("async_transfer_file") == 1, "the first dispatcher may still be running"
    fleet.cloud.clock.advance(61)
    assert fleet.step("dispatch_transfer", job_id)["state"] == "waiting"
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    assert gse.count("async_transfer_file") == 2


def test_more_than_500_targets_go_in_several_calls(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many([f"a-{n}" for n in range(700)])["job_id"]
    stage(fleet, job_id)
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    sizes = [len(transfer) for transfer in gse.transfers.values()]
    assert len(sizes) == 2
    assert sum(sizes) == 700
    assert max(sizes) <= 500
    assert fleet.job(job_id)["transfer_id"] == "gse-1,gse-2"


def test_refused_portion_fails_its_own_targets_alone(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many([f"a-{n}" for n in range(700)])["job_id"]
    stage(fleet, job_id)
    gse.refused = {"a-7"}
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    (accepted,) = gse.transfers.values()
    gse.set(0)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    fleet.step("finish_job", job_id)

    assert gse.count("async_transfer_file") == 2, "a refused portion is not sent again"
    assert gse.terminated == []
    job = fleet.job(job_id)
    assert (job["status"], job["counts"]["success"]) == ("Failed", len(accepted))
    states = fleet.states(job_id)
    assert states["a-7"] == "Failed"
    assert all(states[agent] == "Success" for agent, _ in accepted)
    (refused,) = [one for one in fleet.tasks_of(job_id) if one["target_agent_id"] == "a-7"]
    assert "1010033" in refused["error_msg"]


def test_failed_upload_has_the_next_job_stage_the_file_again(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.fail_upload(119, "source file gone")
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)

    fleet.cloud.clock.advance(20)
    later = fleet.submit("a-2")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", later)
    assert fleet.step("prepare_file", later)["state"] == "waiting"
    assert len(fleet.inbox("source")) == 1


def test_source_container_and_speeds_are_settings(cloud: MotoCloud, gse: GseServer, fleet: Fleet) -> None:
    settings = replace(cloud.app.settings, gse_source_container_id="c-1", gse_upload_speed=50, gse_download_speed=20)
    composition.install(composition.App(settings, cloud.clock))
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)

    ((_, body, _),) = gse.calls
    assert (body["upload_speed"], body["download_speed"]) == (50, 20)
    assert body["tasks"][0]["source"]["agent"]["bk_container_id"] == "c-1"


def test_refusal_fails_the_job_with_the_reason_of_gse(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    gse.code = 1010032
    answer = fleet.step("dispatch_transfer", job_id)
    assert answer["state"] == "refused"
    fleet.step("finish_job", job_id, error=answer["error"])
    assert fleet.job(job_id)["error"] == {"code": "transfer_refused", "detail": "GSE answered 1010032: refused by GSE"}
    assert fleet.states(job_id) == {"a-1": "Failed"}


def test_source_host_that_cannot_fetch_fails_only_this_job(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.step("prepare_file", job_id)
    fleet.report("source", 1005, error_msg="no space")
    assert "no space" in fleet.step("prepare_file", job_id)["error"]["Cause"]
    assert fleet.step("prepare_file", job_id)["state"] == "waiting"
    assert len(fleet.inbox("source")) == 1
    assert gse.calls == []


def test_warm_function_uses_rotated_credentials(fleet: Fleet, gse: GseServer, cloud: MotoCloud) -> None:
    gse.credentials = SECRET
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    gse.credentials = SECRET | {"bk_app_secret": "rotated"}
    stored: Any = {"SecretId": cloud.app.settings.gse_credentials_id}
    cloud.app.secretsmanager.put_secret_value(**stored, SecretString=json.dumps(gse.credentials))
    fleet.cloud.clock.advance(20)
    later = fleet.submit("a-2")["job_id"]
    fleet.collect()
    fleet.pass_window()
    for step in ("close_window", "prepare_file"):
        fleet.step(step, later)

    try:
        assert fleet.step("dispatch_transfer", later)["state"] == "dispatched"
    finally:
        cloud.app.secretsmanager.put_secret_value(**stored, SecretString=json.dumps(SECRET))


def test_wrong_credentials_fail_the_job_after_one_more_read(fleet: Fleet, gse: GseServer) -> None:
    gse.credentials = {"bk_app_code": "other"}
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)

    answer = fleet.step("dispatch_transfer", job_id)

    assert (answer["state"], answer["error"]["Cause"]) == ("refused", "GSE answered 401")
    assert gse.count("async_transfer_file") == 1


def test_activate_at_is_refused_with_gse(fleet: Fleet) -> None:
    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a-1", activate_at="2099-01-01T00:00:00Z"))

    assert answer.status == 422
    assert "activate_at is not possible with the transfer engine of this installation" in answer.json()["detail"]


def test_refused_portion_of_a_wave_leaves_later_waves_untouched(fleet: Fleet, gse: GseServer) -> None:
    agents = [f"a-{n}" for n in range(900)]
    job_id = fleet.submit_many(agents, waves=[{"percent": 50, "max_failed_percent": 90}])["job_id"]
    stage(fleet, job_id)
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job is not None
    first_wave = [agent for agent in agents if job.in_wave(Target(agent), 0)]
    gse.refused = {first_wave[0]}
    fleet.step("dispatch_transfer", job_id)

    failed = {agent for agent, state in fleet.states(job_id).items() if state == "Failed"}

    assert first_wave[0] in failed
    assert failed <= set(first_wave)
    gse.set(0)
    assert fleet.step("poll_transfer", job_id)["state"] == "next_wave"


@pytest.mark.parametrize("content", ["text", ["list"], 7])
def test_result_row_without_an_object_is_ignored(fleet: Fleet, gse: GseServer, content: object) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.set(0)
    gse.extra_rows = [{"error_code": 0, "content": content}]

    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.states(job_id) == {"a-1": "Success"}


@pytest.mark.parametrize("reason", ["upload failed", "staging failed", "six hours passed"])
def test_agent_of_the_source_host_takes_a_repeated_staging_as_new(fleet: Fleet, gse: GseServer, reason: str) -> None:
    """An agent answers a transfer that it has finished with the same result again, and fetches nothing."""
    agent = Inbox()
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.step("prepare_file", job_id)
    first = fetch(agent, fleet)
    fleet.report("source", 1005 if reason == "staging failed" else 0)
    assert fleet.step("prepare_file", job_id)["state"] == ("refused" if reason == "staging failed" else "ready")
    if reason == "upload failed":
        fleet.step("dispatch_transfer", job_id)
        gse.fail_upload(119, "source file gone")
        fleet.step("poll_transfer", job_id)
    fleet.cloud.clock.advance(6 * 3600 + 20 if reason == "six hours passed" else 20)
    later = fleet.submit("a-2")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", later)

    assert fleet.step("prepare_file", later)["state"] == "waiting"
    assert fetch(agent, fleet) != first
    # A late report on the first staging is no report on the second.
    late = [{"transfer_id": first, "container_id": ""}]
    assert fleet.report("source", 0, items=late).status == 404
    assert fleet.step("prepare_file", later)["state"] == "waiting"
    fleet.report("source", 0)
    assert fleet.step("prepare_file", later)["state"] == "ready"


def fetch(agent: Inbox, fleet: Fleet) -> str:
    """The agent takes the only transfer of its inbox as a new one, and finishes it. Returns its id."""
    new, repeated = agent.accept_poll(cast(Any, fleet.inbox("source")), has_result=lambda _: False)
    assert repeated == []
    (transfer,) = new
    agent.finish(result_of(transfer, Code.DONE, ""))
    return transfer["transfer_id"]


# --- what the project was granted


def test_project_without_a_grant_sends_nothing_anywhere(fleet: Fleet, cloud: MotoCloud) -> None:
    stranger = Fleet(cloud)
    body = stranger.body(target_agent_id="a-1", target_file_dir="/etc/cron.d", file_name="x")

    answer = stranger.post("/v1/downloads", body)

    assert (answer.status, answer.json()["code"]) == (403, "target_not_granted")
    assert "to a-1, as root, into /etc/cron.d" in answer.json()["detail"]
    assert [error["loc"][1] for error in answer.json()["errors"]] == ["dirs", "users", "targets"]
    assert stranger.get("/v1/jobs")["items"] == []


@pytest.mark.parametrize(
    ("path", "more", "missing"),
    [
        ("/v1/downloads", {"target_agent_id": "db-1"}, "to db-1:"),
        ("/v1/downloads", {"target_agent_id": "A-1"}, "to A-1:"),
        ("/v1/downloads", {"target_agent_id": "db-1", "target_container_id": "c-1"}, "to db-1/c-1:"),
        ("/v1/downloads", {"target_agent_id": "a-1", "target_user": "mysql"}, "as mysql:"),
        ("/v1/downloads", {"target_agent_id": "a-1", "target_file_dir": "/opt/application"}, "into /opt/application:"),
        ("/v1/downloads", {"target_agent_id": "a-1", "target_file_dir": "/opt/app/.. /x"}, "into /opt/app/.. /x:"),
        ("/v1/downloads/batch", {"targets": [{"agent_id": "a-1"}, {"agent_id": "db-1"}]}, "to db-1:"),
        (
            "/v1/downloads/batch",
            {"targets": [{"agent_id": f"db-{n}"} for n in range(7)]},
            "to db-0, db-1, db-2, db-3, db-4 and 2 more:",
        ),
    ],
)
def test_submit_names_what_the_grant_lacks(fleet: Fleet, path: str, more: dict[str, Any], missing: str) -> None:
    answer = fleet.post(path, fleet.body(**more))

    assert (answer.status, answer.json()["code"]) == (403, "target_not_granted")
    assert missing in answer.json()["detail"]


def test_hosts_chosen_by_group_need_a_grant_too(fleet: Fleet) -> None:
    fleet.inbox("db-1")
    path, groups = "/v1/agents/db-1", {"groups": ["db"]}
    assert fleet.cloud.http("PATCH", path, json=groups, key=fleet.project.key).status == 200

    answer = fleet.post("/v1/downloads/batch", fleet.body(groups=["db"]))

    assert (answer.status, answer.json()["code"]) == (403, "target_not_granted")


def test_admin_key_does_not_exceed_the_grant_of_the_project(fleet: Fleet) -> None:
    body, query = fleet.body(target_agent_id="db-1"), {"project_id": fleet.project.id}
    answer = fleet.cloud.http("POST", "/v1/downloads", json=body, key=fleet.cloud.admin_key, query=query)

    assert (answer.status, answer.json()["code"]) == (403, "target_not_granted")


def test_redrive_needs_the_grant_of_the_moment(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    stage(fleet, job_id)
    fleet.step("dispatch_transfer", job_id)
    gse.set(7, message="disk full")
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    grant(fleet, users=["app"])

    answer = fleet.post(f"/v1/jobs/{job_key(job_id)}/redrive", {})

    assert (answer.status, answer.json()["code"]) == (403, "target_not_granted")
    assert "as root" in answer.json()["detail"]


@pytest.mark.parametrize("lists", [{"targets": []}, {"dirs": ["/opt/application"]}, {"users": ["app"]}])
def test_grant_removed_before_dispatch_fails_the_targets_unsent(
    fleet: Fleet, gse: GseServer, lists: dict[str, list[str]]
) -> None:
    made = fleet.submit("a-1")
    stage(fleet, made["job_id"])
    grant(fleet, **lists)

    assert fleet.step("dispatch_transfer", made["job_id"])["state"] == "refused"
    fleet.step("poll_transfer", made["job_id"])
    fleet.step("finish_job", made["job_id"])

    assert gse.calls == []
    task = fleet.task(made["task_id"])
    assert (task["status"], task["error_code"]) == ("Failed", 9005)
    assert "has no grant to send files" in task["error_msg"]
    assert fleet.job(made["job_id"])["status"] == "Failed"


def test_targets_that_are_still_granted_get_the_file(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many(["a-1", "a-2", "a-3"])["job_id"]
    stage(fleet, job_id)
    grant(fleet, targets=["a-[13]"])

    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    assert list(gse.transfers["gse-1"]) == [("a-1", ""), ("a-3", "")]
    gse.set(0)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)

    assert fleet.states(job_id) == {"a-1": "Success", "a-2": "Failed", "a-3": "Success"}


def test_grant_is_checked_again_before_a_repeated_call(fleet: Fleet, gse: GseServer) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    stage(fleet, job_id)
    gse.trouble["async_transfer_file"] = 503
    assert fleet.step("dispatch_transfer", job_id)["state"] == "waiting"
    del gse.trouble["async_transfer_file"]
    grant(fleet, targets=["a-1"])

    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    assert list(gse.transfers["gse-1"]) == [("a-1", "")]


def test_ungranted_targets_of_a_wave_leave_later_waves_untouched(fleet: Fleet, gse: GseServer) -> None:
    agents = [f"a-{n}" for n in range(20)]
    job_id = fleet.submit_many(agents, waves=[{"percent": 50, "max_failed_percent": 90}])["job_id"]
    stage(fleet, job_id)
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job is not None
    first_wave = [agent for agent in agents if job.in_wave(Target(agent), 0)]
    grant(fleet, targets=first_wave[1:])

    fleet.step("dispatch_transfer", job_id)

    states = fleet.states(job_id)
    assert {agent for agent, state in states.items() if state == "Failed"} == {first_wave[0]}
    assert sorted(states) == sorted(agents)
    assert sorted(agent for agent, _ in gse.transfers["gse-1"]) == sorted(first_wave[1:])


def test_grant_is_shown_and_audited_and_kept_by_other_changes(fleet: Fleet) -> None:
    path, admin = f"/v1/projects/{fleet.project.id}", fleet.cloud.admin_key
    grant(fleet, users=["app", "web"])
    fleet.cloud.http("PATCH", path, json={"group": "shops"}, key=admin)

    lists = {"targets": ["a-*", "a-*/*"], "dirs": ["/opt/app"], "users": ["app", "web"]}
    assert fleet.cloud.http("GET", path, key=admin).json()["gse"] == lists
    query = {"record": fleet.project.id, "project_id": fleet.project.id}
    found = fleet.cloud.http("GET", "/v1/audit", key=admin, query=query).json()["items"]
    assert "gse.users = app web" in [line["why"] for line in found]


@pytest.mark.parametrize(
    "lists",
    [
        {"dirs": ["data"]},
        {"dirs": ["/data/../etc"]},
        {"dirs": ["//data"]},
        {"dirs": ["/data\\x"]},
        {"targets": ["a b"]},
        {"targets": ["a/b/c"]},
        {"targets": ["/c"]},
        {"targets": [""]},
        {"users": [""]},
        {"hosts": ["a"]},
        {"targets": ["a"] * 101},
    ],
)
def test_grant_that_could_be_misread_is_refused(fleet: Fleet, lists: dict[str, list[str]]) -> None:
    path = f"/v1/projects/{fleet.project.id}"

    assert fleet.cloud.http("PATCH", path, json={"gse": lists}, key=fleet.cloud.admin_key).status == 422


def test_project_key_cannot_grant_itself_anything(fleet: Fleet) -> None:
    path, body = f"/v1/projects/{fleet.project.id}", {"gse": {"users": ["root"]}}

    assert fleet.cloud.http("PATCH", path, json=body, key=fleet.project.key).status == 403


# --- two contents of one path


def two_contents(fleet: Fleet) -> tuple[str, str]:
    """Jobs of two windows to the same path, of which nothing was sent; they share the target a-2."""
    older = str(fleet.submit_many(["a-1", "a-2"])["job_id"])
    stage(fleet, older)
    fleet.cloud.clock.advance(20)
    newer = str(fleet.submit_many(["a-2", "a-3"], file_signature=fleet.store(b"newer content"))["job_id"])
    stage(fleet, newer)
    return older, newer


def sent(gse: GseServer) -> list[list[str]]:
    bodies = [body for name, body, _ in gse.calls if name == "async_transfer_file"]
    return [sorted(agent["bk_agent_id"] for agent in body["tasks"][0]["target"]["agents"]) for body in bodies]


def test_newer_content_is_sent_after_the_older_transfer_was_terminated(fleet: Fleet, gse: GseServer) -> None:
    older, newer = two_contents(fleet)
    assert fleet.step("dispatch_transfer", older)["state"] == "dispatched"

    assert fleet.step("dispatch_transfer", newer)["state"] == "waiting"
    assert sent(gse) == [["a-1", "a-2"]], "not while the older one may still be written"
    assert gse.terminated == [("gse-1", [("a-2", "")])]
    gse.set(13, "a-2", message="terminated")

    assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"
    assert sent(gse) == [["a-1", "a-2"], ["a-2", "a-3"]]
    fleet.step("poll_transfer", older)
    assert fleet.states(older) == {"a-1": "Running", "a-2": "Superseded"}
    gse.set(0)
    for job_id in (older, newer):
        assert fleet.step("poll_transfer", job_id)["state"] == "over"
        fleet.step("finish_job", job_id)
    assert fleet.states(newer) == {"a-2": "Success", "a-3": "Success"}
    assert fleet.states(older) == {"a-1": "Success", "a-2": "Superseded"}


def test_newer_content_follows_a_target_that_has_the_older_one_at_once(fleet: Fleet, gse: GseServer) -> None:
    older, newer = two_contents(fleet)
    fleet.step("dispatch_transfer", older)
    gse.set(0, "a-2")
    fleet.step("poll_transfer", older)

    assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"

    assert gse.terminated == []
    assert fleet.states(older) == {"a-1": "Running", "a-2": "Success"}


def test_older_content_is_not_sent_after_the_newer(fleet: Fleet, gse: GseServer) -> None:
    older, newer = two_contents(fleet)
    assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"

    assert fleet.step("dispatch_transfer", older)["state"] == "dispatched"

    assert sent(gse) == [["a-2", "a-3"], ["a-1"]]
    assert fleet.states(older) == {"a-1": "Running", "a-2": "Superseded"}
    assert gse.terminated == []


def test_older_job_whose_targets_all_have_newer_content_is_superseded(fleet: Fleet, gse: GseServer) -> None:
    older = str(fleet.submit("a-2")["job_id"])
    stage(fleet, older)
    fleet.cloud.clock.advance(20)
    newer = str(fleet.submit("a-2", file_signature=fleet.store(b"newer content"))["job_id"])
    stage(fleet, newer)
    fleet.step("dispatch_transfer", newer)

    answer = fleet.step("dispatch_transfer", older)
    fleet.step("finish_job", older, error=answer.get("error"))

    assert sent(gse) == [["a-2"]]
    assert fleet.job(older)["status"] == "Superseded"


@pytest.mark.parametrize("kind", ["still runs", "no answer"])
def test_endless_older_transfer_delays_the_newer_for_two_minutes_only(
    fleet: Fleet, gse: GseServer, trouble: Trouble, kind: str
) -> None:
    older, newer = two_contents(fleet)
    fleet.step("dispatch_transfer", older)
    with trouble("get_transfer_file_result", 503) if kind == "no answer" else nullcontext():
        assert fleet.step("dispatch_transfer", newer)["state"] == "waiting"
        fleet.cloud.clock.advance(121)
        assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"


def test_newer_content_waits_for_a_transfer_whose_answers_were_lost(
    fleet: Fleet, gse: GseServer, trouble: Trouble
) -> None:
    """It may run until the older Job's deadline; two minutes are waited for it, as for a host that is offline."""
    older, newer = two_contents(fleet)
    with trouble("async_transfer_file", "lose"):
        states = [fleet.step("dispatch_transfer", older)["state"] for _ in range(3)]
    assert states == ["waiting", "waiting", "dispatched"]

    assert fleet.step("dispatch_transfer", newer)["state"] == "waiting"
    fleet.cloud.clock.advance(121)
    assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"
    assert sent(gse)[-1] == ["a-2", "a-3"]


@pytest.mark.parametrize("happened", ["answer lost once", "killed before the call"])
def test_newer_content_waits_while_an_older_transfer_may_have_begun(
    fleet: Fleet, gse: GseServer, trouble: Trouble, happened: str
) -> None:
    """It would be sent again, or is under way: the slower of both transfers would decide what is on the host."""
    older, newer = two_contents(fleet)
    if happened == "answer lost once":
        with trouble("async_transfer_file", "lose"):
            assert fleet.step("dispatch_transfer", older)["state"] == "waiting"
    else:
        killed = patch.object(fleet.cloud.app.distribution.engine, "create", side_effect=KeyboardInterrupt)
        with killed, pytest.raises(KeyboardInterrupt):
            fleet.step("dispatch_transfer", older)

    assert fleet.step("dispatch_transfer", newer)["state"] == "waiting"
    fleet.cloud.clock.advance(121)
    assert fleet.step("dispatch_transfer", newer)["state"] == "dispatched"

    # The older Job's targets have newer content now: only its other host is sent the older one.
    states = [fleet.step("dispatch_transfer", older)["state"] for _ in range(2)]
    assert states[-1] == "dispatched"
    assert sent(gse)[-1] == ["a-1"]


def test_transfer_sent_again_after_a_lost_answer_ends_before_the_newer(
    fleet: Fleet, gse: GseServer, trouble: Trouble
) -> None:
    """GSE has the older one twice, with the same content; the second of them is known and waited for."""
    older, newer = two_contents(fleet)
    with trouble("async_transfer_file", "lose"):
        assert fleet.step("dispatch_transfer", older)["state"] == "waiting"
    assert fleet.step("dispatch_transfer", older)["state"] == "dispatched"

    assert fleet.step("dispatch_transfer", newer)["state"] == "waiting"

    assert sent(gse) == [["a-1", "a-2"], ["a-1", "a-2"]]
    assert gse.terminated == [("gse-2", [("a-2", "")])]
