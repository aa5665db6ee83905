"""A caller repeats a request, with its Idempotency-Key, whose function was killed after any of its AWS calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from botocore.client import BaseClient

from tests.integration.distribution.test_cancel_redrive import failed_job
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer, MotoCloud
from tidegate import app as composition
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.distribution.model import job_key

_READS = ("Get", "BatchGet", "Query", "Scan", "Head", "List", "Describe")
# A run that has created nothing keeps the key for five seconds.
_LONGEST_WAIT = 6


class Killed(BaseException):
    pass


class Kills:
    """Kills the function of a request after its `at`-th AWS call that is not a read."""

    def __init__(self, cloud: MotoCloud) -> None:
        self.cloud = cloud
        self.at: int | None = None
        self._made, self._running, self._dead = 0, False, False

    @contextmanager
    def armed(self) -> Iterator[None]:
        send, invoke = BaseClient._make_api_call, self.cloud.invoke  # type: ignore[attr-defined]

        def counted(client: Any, operation: str, arguments: Any) -> Any:
            if not self._running or self.at is None:
                return send(client, operation, arguments)
            if self._dead:
                raise Killed
            answer = send(client, operation, arguments)
            if not operation.startswith(_READS):
                self._made += 1
                self._dead = self._made == self.at
            if self._dead:
                raise Killed
            return answer

        def invoked(name: str, event: Any) -> Any:
            self._running, self._made, self._dead = name in ("api", "submit"), 0, False
            try:
                return invoke(name, event)
            finally:
                self._running = False

        with ExitStack() as patches:
            patches.enter_context(patch.object(BaseClient, "_make_api_call", counted))
            patches.enter_context(patch.object(self.cloud, "invoke", invoked))
            yield

    def after_call(self, number: int | None, ask: Callable[[], Answer]) -> Answer | None:
        """The answer; None if the function was killed. The next request gets a new process."""
        self.at = number
        try:
            return ask()
        except Killed:
            composition.install(composition.App(clock=self.cloud.clock))
            return None
        finally:
            self.at = None


@dataclass(frozen=True)
class Lab:
    cloud: MotoCloud
    fleet: Fleet
    batches: BatchWorld
    biz_id: str
    asked_biz_id: str

    def post(self, path: str, body: Any, *, expect: int = 201, admin: bool = False) -> dict[str, Any]:
        key = self.cloud.admin_key if admin else self.fleet.project.key
        answer = self.cloud.http("POST", path, json=body, key=key)
        assert answer.status == expect, answer.body
        return dict(answer.json())

    def url(self, path: str) -> str:
        return self.batches.business.url(path)

    def ended_batch(self) -> str:
        self.batches.business.answers["/process"] = lambda _: (200, {"result": "error", "msg": "no"})
        batch_id = self.batches.create(self.biz_id, on_item_failure="skip", retries=1)
        request_id = self.batches.act(batch_id, "start")["request_id"]
        for _ in range(50):
            # Again and again: on a busy machine, one admission may run out of its time first.
            self.batches.admit()
            self.batches.step(request_id)
            if self.batches.shown(batch_id)["status"] == "finished":
                return batch_id
            self.cloud.clock.advance(60)
        raise AssertionError(self.batches.shown(batch_id))


# Prepares a request, and returns its path and its body.
Prepare = Callable[[Lab, str], tuple[str, Any]]


def _rotated_secret(lab: Lab, _: str) -> tuple[str, Any]:
    path = f"/v1/projects/{lab.fleet.project.id}/callback-secrets"
    lab.cloud.http("DELETE", f"{path}/previous", key=lab.cloud.admin_key)
    return path, None


def _redriven_job(lab: Lab, _: str) -> tuple[str, Any]:
    job_id = failed_job(lab.fleet, "a-1", "a-2")
    return f"/v1/jobs/{job_key(job_id)}/redrive", {}


def _rotated_key(lab: Lab, name: str) -> tuple[str, Any]:
    made = lab.post(f"/v1/projects/{lab.fleet.project.id}/keys", {"scopes": ["read"], "name": name}, admin=True)
    return f"/v1/keys/{made['key_id']}/rotate", {}


def _many(lab: Lab, _: str) -> tuple[str, Any]:
    # More than are written together, and one of them twice.
    targets = [{"agent_id": f"a-{number}"} for number in (*range(30), 0)]
    return "/v1/downloads/batch", lab.fleet.body(targets=targets)


def _started(biz_id: Callable[[Lab], str]) -> Prepare:
    return lambda lab, _: (f"/v1/batches/{lab.batches.create(biz_id(lab))}/start", {})


def _scanned(lab: Lab, name: str) -> tuple[str, Any]:
    made = lab.post("/v1/subscriptions", _subscription(lab, name))
    return f"/v1/subscriptions/{made['subscription_id']}/download", None


def _subscription(lab: Lab, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source_url": lab.url("/list.json"),
        "biz_id": 1,
        "app_id": 2,
        "file_path": f"/{name}/{{name}}",
    }


def _file(name: str, **more: Any) -> dict[str, Any]:
    return {"biz_id": 1, "app_id": 2, "file_path": f"/in/{name}", "size": 5, **more}


def _ingest(lab: Lab, name: str, **more: Any) -> dict[str, Any]:
    payload = {"source_url": lab.url(f"/{name}"), "biz_id": 1, "app_id": 2, "file_path": f"/in/{name}"}
    return {"type": "download", "payload": payload, **more}


_TABLE = {"source_data": [{"id": 1}], "template": {"id": "Id"}}

# By route, and a word for a second way to use it.
REQUESTS: dict[tuple[str, str], Prepare] = {
    ("/v1/downloads", ""): lambda lab, _: ("/v1/downloads", lab.fleet.body(target_agent_id="a-1")),
    ("/v1/downloads/batch", ""): _many,
    ("/v1/jobs/{job}/redrive", ""): _redriven_job,
    ("/v1/files", ""): lambda _, name: ("/v1/files", _file(name)),
    ("/v1/files", "in parts"): lambda _, name: ("/v1/files", _file(name, multipart=True)),
    ("/v1/files", "by URL"): lambda lab, name: ("/v1/files", _file(name, source_url=lab.url(f"/{name}"))),
    ("/v1/requests", ""): lambda lab, name: ("/v1/requests", _ingest(lab, name)),
    ("/v1/requests", "dedupe_key"): lambda lab, name: ("/v1/requests", _ingest(lab, name, dedupe_key=name)),
    ("/v1/subscriptions", ""): lambda lab, name: ("/v1/subscriptions", _subscription(lab, name)),
    ("/v1/subscriptions/{subscription_id}/download", ""): _scanned,
    ("/v1/task", ""): lambda _, name: ("/v1/task", {"name": name, **_TABLE}),
    ("/v1/task/multiple", ""): lambda _, name: ("/v1/task/multiple", {"name": name, "source_data": [[{"id": 1}]] * 2}),
    ("/v1/export-schedules", ""): lambda lab, name: (
        "/v1/export-schedules",
        {"name": name, "schedule": "rate(1 day)", "source_url": lab.url("/rows"), "template": {"id": "Id"}},
    ),
    ("/v1/export-schedules/multiple", ""): lambda lab, name: (
        "/v1/export-schedules/multiple",
        {"name": name, "schedule": "rate(1 day)", "source_url": [lab.url("/rows")] * 2},
    ),
    ("/v1/batch-schedules", ""): lambda lab, name: (
        "/v1/batch-schedules",
        {"schedule": "rate(1 day)", "batch": {"biz_id": lab.biz_id, "name": name, "total": 5, "rate": 1}},
    ),
    ("/v1/biz", ""): lambda lab, name: ("/v1/biz", {"name": name, "process_url": lab.url("/process")}),
    ("/v1/batches", ""): lambda lab, name: (
        "/v1/batches",
        {"biz_id": lab.asked_biz_id, "name": name, "total": 5, "rate": 1, "runners": 2},
    ),
    ("/v1/batches/{batch_id}/start", ""): _started(lambda lab: lab.biz_id),
    ("/v1/batches/{batch_id}/start", "asks"): _started(lambda lab: lab.asked_biz_id),
    ("/v1/batches/{batch_id}/redrive", ""): lambda lab, _: (f"/v1/batches/{lab.ended_batch()}/redrive", {}),
    ("/v1/batches/{batch_id}/logs", ""): lambda lab, name: (
        f"/v1/batches/{lab.batches.create(lab.biz_id)}/logs",
        {"items": [{"message": f"{name} {number}"} for number in range(30)]},
    ),
    ("/v1/batches/{batch_id}/logs/export", ""): lambda lab, _: (
        f"/v1/batches/{lab.batches.create(lab.biz_id)}/logs/export",
        None,
    ),
    ("/v1/projects", ""): lambda _, name: ("/v1/projects", {"name": name}),
    ("/v1/projects/{project_id}/keys", ""): lambda lab, name: (
        f"/v1/projects/{lab.fleet.project.id}/keys",
        {"scopes": ["agent"], "agent_id": name},
    ),
    ("/v1/keys", ""): lambda _, name: ("/v1/keys", {"name": name}),
    ("/v1/keys/{key_id}/rotate", ""): _rotated_key,
    ("/v1/sign-in-tickets", ""): lambda _lab, _name: ("/v1/sign-in-tickets", None),
    ("/v1/ws-tickets", ""): lambda _lab, _name: ("/v1/ws-tickets", None),
    ("/v1/projects/{project_id}/callback-secrets", ""): _rotated_secret,
    ("/v1/enrolments", ""): lambda _lab, _name: ("/v1/enrolments", {"uses": 2}),
}
_BY_ADMINS = ("/v1/projects", "/v1/keys", "/v1/sign-in", "/v1/enrolments")
_OF_SECRETS = ("/keys", "/rotate", "-tickets", "/callback-secrets", "/enrolments")
# The keys of the requests, an item for each hour, and the time for which a killed function waited for a business.
_WAITED = {("USAGE", "runner_seconds"), ("USAGE", "expires_at")}
_VARYING: set[Any] = {"IDEMPOTENCY", "IDEMPOTENT_ANSWER", "REQUEST_STATS", *_WAITED}


@pytest.fixture
def lab(cloud: MotoCloud) -> Iterator[Lab]:
    fleet = Fleet(cloud)
    with batch_world(cloud) as batches:
        batches.project = fleet.project
        batches.business.secret = None
        # Killed requests and their repeats come faster than a project may send them.
        raised = {"quotas": {"requests_per_s": 10_000}}
        assert cloud.http("PATCH", f"/v1/projects/{fleet.project.id}", json=raised, key=cloud.admin_key).status == 200
        asked = batches.register("before_create", "before_run")
        yield Lab(cloud, fleet, batches, batches.register(), asked)


def records(cloud: MotoCloud) -> Counter[Any]:
    """How many items of each kind the table has, and what quotas count."""
    cloud.deliver("TargetsQueue")
    found: Counter[Any] = Counter()
    for page in cloud.client("dynamodb").get_paginator("scan").paginate(TableName=cloud.names.refs["Table"]):
        for item in page["Items"]:
            kind = [*item["pk"]["S"].split("#"), "", ""][2]
            found[kind] += 1
            if "USAGE" in kind:
                found.update({(kind, name): float(value["N"]) for name, value in item.items() if "N" in value})
    return found


def added(before: Counter[Any], after: Counter[Any]) -> dict[Any, float]:
    changed = {name: after[name] - before[name] for name in {*before, *after} - _VARYING}
    return {name: count for name, count in changed.items() if count}


def test_every_route_with_an_idempotency_key_is_among_the_requests(cloud: MotoCloud) -> None:
    paths = cloud.http("GET", "/openapi.json").json()["paths"]
    takes_one = {
        path
        for path, operations in paths.items()
        if "Idempotency-Key" in json.dumps(operations.get("post", {}).get("parameters", []))
    }
    assert {route for route, _ in REQUESTS} == takes_one


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: " ".join(kind).strip())
def test_repeat_after_a_kill_leads_to_the_one_record(lab: Lab, kind: tuple[str, str]) -> None:
    kills, prepare = Kills(lab.cloud), REQUESTS[kind]
    usual, body_usual = dict[Any, float](), dict[str, Any]()
    with kills.armed():
        # Not killed: 0, whose like may write more than later ones do, and None, which shows what they write.
        for number in (0, None, *range(1, 40)):
            path, body = prepare(lab, f"n-{number}")
            lab.fleet.to_window_start()
            before = records(lab.cloud)
            answer, killed = ask_until_answered(lab, kills, number, path, body, f"key-{number}")
            after = added(before, records(lab.cloud))
            if not number:
                assert 200 <= answer.status < 300, answer.body
                usual, body_usual = after, answer.json()
                continue
            if not killed:
                break
            more = {name: after.get(name, 0) - usual.get(name, 0) for name in {*after, *usual}}
            assert not any(more.values()), f"killed after call {number}: {more}"
            _leads_to_the_record(lab, answer, body_usual, path, body, f"key-{number}")
        else:
            raise AssertionError("no run without a kill")
    assert (number or 0) > 3, "a request takes the key, writes its record, and stores its answer"


def ask_until_answered(
    lab: Lab, kills: Kills, number: int | None, path: str, body: Any, key: str
) -> tuple[Answer, bool]:
    """The first answer, and whether the function was killed before. The caller repeats as the documentation says."""
    began, killed = lab.cloud.clock(), False
    answer = kills.after_call(number or None, lambda: send(lab, path, body, key))
    while answer is None or (answer.status == 409 and answer.json()["code"] == "idempotency_in_progress"):
        killed = True
        if answer is not None:
            lab.cloud.clock.advance(2)
        assert (lab.cloud.clock() - began).total_seconds() <= _LONGEST_WAIT, "the key is held for too long"
        answer = send(lab, path, body, key)
    return answer, killed


def send(lab: Lab, path: str, body: Any, key: str) -> Answer:
    admin = path.startswith(_BY_ADMINS)
    query = {"project_id": lab.fleet.project.id} if path == "/v1/enrolments" else {}
    caller = lab.cloud.admin_key if admin else lab.fleet.project.key
    return lab.cloud.http("POST", path, json=body, key=caller, query=query, headers={"idempotency-key": key})


def _leads_to_the_record(lab: Lab, answer: Answer, usual: dict[str, Any], path: str, body: Any, key: str) -> None:
    again = send(lab, path, body, key)
    if not path.endswith(_OF_SECRETS):
        assert 200 <= answer.status < 300, answer.body
        assert set(answer.json()) == set(usual)
        assert (again.status, again.json()) == (answer.status, answer.json())
        return
    # The run after the kill has made it, or that of the kill has.
    assert answer.status == 201 or answer.json()["code"] == "already_created", answer.body
    assert again.json()["code"] == "already_created"
    ids = {name for name in usual if name.endswith("_id")}
    assert {name: again.json()[name] for name in ids} == {name: answer.json()[name] for name in ids}


# --- a submit


def test_slow_run_creates_nothing_once_a_repeat_has_the_key(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not dead, only slow: another one has taken the key over meanwhile, and has made the record."""
    fleet = Fleet(cloud)
    body, headers = fleet.body(target_agent_id="agent-1"), {"idempotency-key": "once"}
    write, repeats = cloud.app.distribution.tasks.add, list[Answer]()

    def slow(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        repeats.append(fleet.post("/v1/downloads", body, headers=headers))
        cloud.clock.advance(6)
        repeats.append(fleet.post("/v1/downloads", body, headers=headers))
        write(*args, **options)

    monkeypatch.setattr(cloud.app.distribution.tasks, "add", slow)
    first = fleet.post("/v1/downloads", body, headers=headers)

    waiting, second = repeats
    for refused in (first, waiting):
        assert (refused.status, refused.json()["code"]) == (409, "idempotency_in_progress")
    assert second.status == 202
    last = fleet.post("/v1/downloads", body, headers=headers)
    assert last.json() == second.json()
    assert [task["task_id"] for task in fleet.get("/v1/downloads")["items"]] == [second.json()["task_id"]]


def test_each_run_that_takes_the_key_over_has_it_for_longer(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(cloud)
    body, headers = fleet.body(target_agent_id="agent-1"), {"idempotency-key": "once"}

    def killed(*_: object, **__: object) -> None:
        raise Killed

    held = []
    with monkeypatch.context() as broken:
        broken.setattr("tidegate.distribution.submit.submit", killed)
        for _ in range(4):
            began = cloud.clock()
            while True:
                try:
                    answer = fleet.post("/v1/downloads", body, headers=headers)
                except Killed:
                    break
                assert answer.json()["code"] == "idempotency_in_progress"
                cloud.clock.advance(1)
            held.append(round((cloud.clock() - began).total_seconds()))
    # The last one had it for as long as its function may run.
    assert held == [0, 6, 11, 21]


def test_repeat_of_a_changed_record_names_it(cloud: MotoCloud) -> None:
    """The first answer was lost, and what it said can no longer be said."""
    fleet = Fleet(cloud)
    body, headers = {"biz_id": 1, "app_id": 2, "file_path": "/in/a", "size": 5}, {"idempotency-key": "once"}
    kills = Kills(cloud)
    with kills.armed():
        # The key's item, and the transaction with the file.
        assert kills.after_call(2, lambda: fleet.post("/v1/files", body, headers=headers)) is None
    (file,) = fleet.get("/v1/files")["items"]
    key = keys.file(fleet.project.id, file["file_id"])
    cloud.app.table.write(update(key, {"state": "failed"}))

    answer = fleet.post("/v1/files", body, headers=headers)

    assert (answer.status, answer.json()["code"]) == (409, "already_created")
    assert answer.json()["file_id"] == file["file_id"]
