"""Calls every route that changes something once: an audit line names the key."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.items import DataItems
from tidegate.batches.model import ItemOutcome, ItemResult
from tidegate.errors import DomainError, NotFound, ServiceUnavailable
from tidegate.files.model import upload_object
from tidegate.notifications.deliveries import CallbackDelivery
from tidegate.projects.audit import AuditFilter
from tidegate.web.api import build_api
from tidegate.web.openapi import contract

# Routes that leave no audit line, and why.
EXCEPTIONS = {
    "POST /v1/files/{file_id}/parts": "signs addresses and stores nothing; announce and complete are audited",
    "POST /v1/ws-tickets": "a ticket only lets its holder listen, for one connection within 60 s",
    "POST /v1/sign-in": "its line names the admin key that made the ticket",
    "POST /v1/agents/enrol": "its line names the enrolment whose token was used, as the host has no key yet",
    "POST /v1/agents/{agent_id}/results": "a host's report is its target's state in the Job, whose end is a line",
    "PUT /v1/agents/{agent_id}/releases": "a host's report is its state in the release, whose waves are lines",
    "PUT /v1/agents/{agent_id}/presence": "a host says where it is, every hour; nothing else changes",
    "POST /v1/batches/{batch_id}/dry-run": "asks the business and stores no record",
    "POST /v1/batches/{batch_id}/items/{index}/result": "one item's answer; outcomes are kept in S3",
    "POST /v1/batches/{batch_id}/logs": "log lines are themselves a record of what happened, and change nothing else",
    "POST /v1/subscriptions/preview": "reads a source and stores no record",
    "POST /v1/task/sample": "reads a source and stores no record",
    "POST /v1/download/sync": "answers a file and stores no record",
    "POST /v1/download/sync/multiple": "answers a file and stores no record",
}
SOURCE = "http://127.0.0.1:9/list"
TABLE = {"name": "table", "source_data": [{"a": 1}]}
DAILY: dict[str, Any] = {"schedule": "rate(1 day)"}


@dataclass
class World:
    """Records that the project's key created, for another key to change."""

    batches: BatchWorld

    @property
    def cloud(self) -> MotoCloud:
        return self.batches.cloud

    @property
    def project_id(self) -> str:
        return self.batches.project.id

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(self.cloud, self.batches.project)

    def post(self, path: str, body: Any, name: str) -> str:
        answer = self.batches.http("POST", path, body)
        assert answer.status < 300, answer.body
        return str(answer.json()[name])

    def file(self, content: bytes | None = None) -> str:
        file_id = self.post("/v1/files", {"biz_id": 1, "app_id": 1, "file_path": "/a"}, "file_id")
        if content is not None:
            key = upload_object(self.project_id, file_id)
            self.cloud.client("s3").put_object(Bucket=self.cloud.app.files.bucket.name, Key=key, Body=content)
        return file_id

    def job(self) -> str:
        self.fleet.to_window_start()
        return str(self.fleet.job(self.fleet.submit("a-1")["job_id"])["key"])

    def failed_job(self) -> str:
        self.fleet.to_window_start()
        job_id = self.fleet.submit("a-2")["job_id"]
        self.fleet.run_until_dispatched(job_id)
        self.fleet.report("a-2", 5)
        self.fleet.step("poll_transfer", job_id)
        self.fleet.step("finish_job", job_id)
        return str(self.fleet.job(job_id)["key"])

    def agent(self) -> str:
        self.cloud.app.distribution.fleet_store.note_seen(self.project_id, "host-7", self.cloud.clock())
        return "host-7"

    def request(self, *acts: str) -> str:
        """A waiting request, after these actions on it."""
        check = {"type": "check", "payload": {"file_id": self.complete_file()}}
        request_id = self.post("/v1/requests", check, "request_id")
        for act in acts:
            self.post(f"/v1/requests/{request_id}/{act}", None, "request_id")
        return request_id

    def complete_file(self) -> str:
        return self.post(f"/v1/files/{self.file(b'x')}/complete", None, "file_id")

    def failed_request(self, error: DomainError | None = None) -> str:
        app, request_id = self.cloud.app, self.request()
        self.cloud.deliver("AdmissionQueue")
        running = app.queue.get(self.project_id, request_id)
        app.queue.finish(self.project_id, request_id, running.attempt, error=error or NotFound("gone"))
        return request_id

    def frozen(self, action: str) -> str:
        self.cloud.app.freeze.freeze("a test", "the test")
        return action

    def host_pause(self) -> str:
        self.cloud.app.ingest.host_pauses.note(self.project_id, "https://files.example/a", 3600)
        return "https:files.example"

    def subscription(self) -> str:
        return self.post("/v1/subscriptions", {"name": "s", "source_url": SOURCE}, "subscription_id")

    def schedule(self) -> str:
        return self.post("/v1/export-schedules", TABLE | DAILY, "schedule_id")

    def paused_schedule(self) -> str:
        return self.post(f"/v1/export-schedules/{self.schedule()}/pause", None, "schedule_id")

    def paused_subscription(self) -> str:
        return self.post(f"/v1/subscriptions/{self.subscription()}/pause", None, "subscription_id")

    def batch(self, *acts: str, hooks: tuple[str, ...] = ()) -> str:
        batch_id = self.batches.create(self.batches.register(*hooks))
        for act in acts:
            self.batches.act(batch_id, act)
        return batch_id

    def schedule_body(self) -> dict[str, Any]:
        batch = {"biz_id": self.batches.register(), "name": "n", "total": 3, "rate": 1}
        return {"schedule": "rate(1 day)", "batch": batch}

    def batch_schedule(self) -> str:
        return self.post("/v1/batch-schedules", self.schedule_body(), "schedule_id")

    def batch_with_failures(self) -> str:
        part = self.cloud.app.batches
        batch = part.store.get(self.project_id, self.batch())
        assert batch is not None
        lease = part.store.acquire(batch, 1.0, 0.0)
        assert lease is not None
        failed = ItemOutcome(1, "failed", 5, ItemResult("error", "no stock"))
        part.outcomes.write_part(batch, 0, 1, lease[0], [failed], DataItems(lambda: None))
        part.store.save(batch, lease[0], replace(lease[1], outcome_parts=1), 0)
        return batch.batch_id

    def waiting_batch(self) -> str:
        # A rotation must be in progress.
        self.batches.business.secret = None
        return self.batch("start", hooks=("before_run",))

    def callback(self) -> str:
        now = self.cloud.clock().timestamp()
        delivery = CallbackDelivery(
            "dlv-1", self.project_id, "req-1", "k", SOURCE, "{}", "dead", "2026-01-01", now, now
        )
        assert self.cloud.app.notifications.callbacks._store.add(delivery, 0)
        return delivery.delivery_id

    def release_body(self) -> dict[str, Any]:
        file = {"file_path": "/a", "signature": self.fleet.signature, "target_user": "root"}
        file["target_file_dir"] = f"/srv/{uuid.uuid4()}"
        return {"files": [file], "targets": {"groups": ["web"]}, "activate": "manual"}

    def release(self, *acts: str) -> str:
        key, name = self.batches.project.key, f"r-{uuid.uuid4().hex[:8]}"
        assert self.cloud.http("PUT", f"/v1/releases/{name}", json=self.release_body(), key=key).status == 201
        for act in acts:
            assert self.cloud.http("POST", f"/v1/releases/{name}/{act}", key=key).status == 202
        return name

    def key(self) -> str:
        return self.cloud.make_key(self.project_id, ["read"]).split("_")[1]

    def rotated(self) -> str:
        self.cloud.app.projects.callback_secrets.rotate(self.project_id)
        return self.project_id


# The path and body of a call that succeeds.
Call = Callable[[World], tuple[str, Any]]
CALLS: dict[str, Call] = {
    "POST /v1/projects": lambda w: ("/v1/projects", {"name": "new"}),
    "POST /v1/projects/{project_id}/keys": lambda w: (f"/v1/projects/{w.project_id}/keys", {"scopes": ["read"]}),
    "PATCH /v1/projects/{project_id}": lambda w: (f"/v1/projects/{w.project_id}", {"group": "other"}),
    "PUT /v1/projects/{project_id}/swarm": lambda w: (f"/v1/projects/{w.project_id}/swarm", {"swarm": "off"}),
    "POST /v1/sign-in-tickets": lambda w: ("/v1/sign-in-tickets", None),
    "POST /v1/keys": lambda w: ("/v1/keys", {"name": "second"}),
    "POST /v1/keys/{key_id}/rotate": lambda w: (f"/v1/keys/{w.key()}/rotate", {"overlap_s": 60}),
    "DELETE /v1/keys/{key_id}": lambda w: (f"/v1/keys/{w.key()}", None),
    "POST /v1/projects/{project_id}/callback-secrets": lambda w: (
        f"/v1/projects/{w.project_id}/callback-secrets",
        None,
    ),
    "DELETE /v1/projects/{project_id}/callback-secrets/previous": lambda w: (
        f"/v1/projects/{w.rotated()}/callback-secrets/previous",
        None,
    ),
    "POST /v1/files": lambda w: ("/v1/files", {"biz_id": 1, "app_id": 1, "file_path": "/a"}),
    "POST /v1/files/{file_id}/complete": lambda w: (f"/v1/files/{w.file(b'x')}/complete", None),
    "DELETE /v1/files/{file_id}": lambda w: (f"/v1/files/{w.file(b'x')}", None),
    "POST /v1/downloads": lambda w: ("/v1/downloads", w.fleet.body(target_agent_id="a")),
    "POST /v1/downloads/batch": lambda w: ("/v1/downloads/batch", w.fleet.body(targets=[{"agent_id": "a"}])),
    "PATCH /v1/agents/{agent_id}": lambda w: (f"/v1/agents/{w.agent()}", {"groups": ["web"]}),
    "DELETE /v1/agents/{agent_id}": lambda w: (f"/v1/agents/{w.agent()}", None),
    "PATCH /v1/jobs/{job}": lambda w: (f"/v1/jobs/{w.job()}", {"note": "ticket 17"}),
    "PATCH /v1/task": lambda w: (f"/v1/task?task_id={w.post('/v1/task', TABLE, 'task_id')}", {"note": "ticket 17"}),
    "POST /v1/jobs/{job}/cancel": lambda w: (f"/v1/jobs/{w.job()}/cancel", None),
    "POST /v1/jobs/{job}/redrive": lambda w: (f"/v1/jobs/{w.failed_job()}/redrive", {}),
    "PUT /v1/releases/{name}": lambda w: ("/v1/releases/app", w.release_body()),
    "DELETE /v1/releases/{name}": lambda w: (f"/v1/releases/{w.release()}", None),
    "POST /v1/releases/{name}/rollback": lambda w: (f"/v1/releases/{w.release()}/rollback", {"to": 1}),
    "POST /v1/releases/{name}/pause": lambda w: (f"/v1/releases/{w.release()}/pause", None),
    "POST /v1/releases/{name}/resume": lambda w: (f"/v1/releases/{w.release('pause')}/resume", None),
    "POST /v1/releases/{name}/activate": lambda w: (f"/v1/releases/{w.release()}/activate", None),
    "POST /v1/releases/{name}/gate": lambda w: (f"/v1/releases/{w.release()}/gate", {"pass": True}),
    "POST /v1/enrolments": lambda w: (f"/v1/enrolments?project_id={w.project_id}", {}),
    "POST /v1/task": lambda w: ("/v1/task", TABLE),
    "POST /v1/task/multiple": lambda w: ("/v1/task/multiple", {"name": "two", "source_data": [[{"a": 1}], [{"a": 2}]]}),
    "POST /v1/export-schedules": lambda w: ("/v1/export-schedules", TABLE | DAILY),
    "POST /v1/export-schedules/multiple": lambda w: (
        "/v1/export-schedules/multiple",
        {"name": "orders", "source_data": [[{"a": 1}]]} | DAILY,
    ),
    "PATCH /v1/export-schedules/{schedule_id}": lambda w: (f"/v1/export-schedules/{w.schedule()}", {"paused": True}),
    "POST /v1/export-schedules/{schedule_id}/pause": lambda w: (f"/v1/export-schedules/{w.schedule()}/pause", None),
    "POST /v1/export-schedules/{schedule_id}/resume": lambda w: (
        f"/v1/export-schedules/{w.paused_schedule()}/resume",
        None,
    ),
    "DELETE /v1/export-schedules/{schedule_id}": lambda w: (f"/v1/export-schedules/{w.schedule()}", None),
    "POST /v1/tasks/delete": lambda w: ("/v1/tasks/delete", {"task_ids": [w.post("/v1/task", TABLE, "task_id")]}),
    "POST /v1/callbacks/{delivery_id}/redeliver": lambda w: (f"/v1/callbacks/{w.callback()}/redeliver", None),
    "POST /v1/biz": lambda w: ("/v1/biz", {"name": "b", "process_url": SOURCE}),
    "PUT /v1/biz/{biz_id}": lambda w: (f"/v1/biz/{w.batches.register()}", {"name": "b", "process_url": SOURCE}),
    "DELETE /v1/biz/{biz_id}": lambda w: (f"/v1/biz/{w.batches.register()}", None),
    "DELETE /v1/batches/{batch_id}": lambda w: (f"/v1/batches/{w.batch()}", None),
    "POST /v1/batches": lambda w: (
        "/v1/batches",
        {"biz_id": w.batches.register(), "name": "n", "total": 3, "rate": 1},
    ),
    "PATCH /v1/batches/{batch_id}": lambda w: (f"/v1/batches/{w.batch()}", {"rate": 7}),
    "POST /v1/batches/{batch_id}/start": lambda w: (f"/v1/batches/{w.batch()}/start", None),
    "POST /v1/batches/{batch_id}/stop": lambda w: (f"/v1/batches/{w.batch('start')}/stop", None),
    "POST /v1/batches/{batch_id}/biz-start": lambda w: (f"/v1/batches/{w.waiting_batch()}/biz-start", {}),
    "POST /v1/batches/{batch_id}/biz-stop": lambda w: (f"/v1/batches/{w.waiting_batch()}/biz-stop", {}),
    "POST /v1/batches/{batch_id}/data": lambda w: (f"/v1/batches/{w.waiting_batch()}/data", {"job_data": {"v": 2}}),
    "POST /v1/batches/{batch_id}/redrive": lambda w: (f"/v1/batches/{w.batch_with_failures()}/redrive", None),
    "POST /v1/batches/{batch_id}/logs/export": lambda w: (f"/v1/batches/{w.batch()}/logs/export", None),
    "POST /v1/batch-schedules": lambda w: ("/v1/batch-schedules", w.schedule_body()),
    "PATCH /v1/batch-schedules/{schedule_id}": lambda w: (
        f"/v1/batch-schedules/{w.batch_schedule()}",
        {"paused": True},
    ),
    "DELETE /v1/batch-schedules/{schedule_id}": lambda w: (f"/v1/batch-schedules/{w.batch_schedule()}", None),
    "POST /v1/queue/capacity": lambda w: ("/v1/queue/capacity", {"export": 3}),
    "POST /v1/queue/pause": lambda w: ("/v1/queue/pause", {"scope": "export"}),
    "POST /v1/queue/resume": lambda w: ("/v1/queue/resume", None),
    "POST /v1/requests": lambda w: ("/v1/requests", {"type": "check", "payload": {"file_id": w.complete_file()}}),
    "POST /v1/requests/{request_id}/cancel": lambda w: (f"/v1/requests/{w.request()}/cancel", None),
    "POST /v1/requests/{request_id}/pause": lambda w: (f"/v1/requests/{w.request()}/pause", None),
    "POST /v1/requests/{request_id}/resume": lambda w: (f"/v1/requests/{w.request('pause')}/resume", None),
    "POST /v1/requests/{request_id}/retry-now": lambda w: (
        f"/v1/requests/{w.failed_request(ServiceUnavailable('busy'))}/retry-now",
        None,
    ),
    "DELETE /v1/host-pauses/{origin}": lambda w: (f"/v1/host-pauses/{w.host_pause()}", None),
    "POST /v1/requests/{request_id}/retry": lambda w: (f"/v1/requests/{w.failed_request()}/retry", None),
    "POST /v1/requests/{request_id}/prioritize": lambda w: (f"/v1/requests/{w.request()}/prioritize", {"priority": 1}),
    "POST /v1/requests/bulk": lambda w: (
        "/v1/requests/bulk",
        {"action": "cancel", "status": "pending", "type": w.request() and "check"},
    ),
    "PATCH /v1/subscriptions/{subscription_id}": lambda w: (f"/v1/subscriptions/{w.subscription()}", {"name": "t"}),
    "POST /v1/subscriptions/{subscription_id}/pause": lambda w: (f"/v1/subscriptions/{w.subscription()}/pause", None),
    "POST /v1/subscriptions/{subscription_id}/resume": lambda w: (
        f"/v1/subscriptions/{w.paused_subscription()}/resume",
        None,
    ),
    "POST /v1/subscriptions": lambda w: ("/v1/subscriptions", {"name": "s", "source_url": SOURCE}),
    "DELETE /v1/subscriptions/{subscription_id}": lambda w: (f"/v1/subscriptions/{w.subscription()}", None),
    "POST /v1/subscriptions/{subscription_id}/download": lambda w: (
        f"/v1/subscriptions/{w.subscription()}/download",
        None,
    ),
    "PUT /v1/credentials/{name}": lambda w: (
        "/v1/credentials/cookies",
        {"headers": {"Cookie": "a=b"}, "origins": ["https://files.example"]},
    ),
    "DELETE /v1/credentials/{name}": lambda w: ("/v1/credentials/cookies", None),
    "POST /v1/compensation/trigger": lambda w: ("/v1/compensation/trigger", None),
    "POST /v1/cleanup": lambda w: ("/v1/cleanup", None),
    "POST /v1/ops/freeze": lambda w: ("/v1/ops/freeze", {"reason": "a restore"}),
    "POST /v1/ops/reconcile": lambda w: (f"/v1/ops/{w.frozen('reconcile')}", None),
    "POST /v1/ops/thaw": lambda w: (f"/v1/ops/{w.frozen('thaw')}", None),
}


@cache
def changing_routes() -> dict[str, str]:
    """Every route of the OpenAPI document that is not a GET, with its scope."""
    return {
        f"{method.upper()} {path}": (operation["security"] or [{"key": ["open"]}])[0]["key"][0]
        for path, operations in contract(build_api())["paths"].items()
        for method, operation in operations.items()
        if method != "get"
    }


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with MotoCloud() as cloud, batch_world(cloud) as batches:
        yield World(batches)


def audited(world: World, actor: str) -> list[dict[str, Any]]:
    """The actor's audit lines in the project and of the deployment."""
    lines: list[dict[str, Any]] = []
    for project_id in (world.project_id, "_system"):
        query = {"project_id": project_id, "actor": actor, "limit": 100}
        lines += world.cloud.http("GET", "/v1/audit", query=query, key=world.cloud.admin_key).json()["items"]
    return lines


def test_every_changing_route_is_tested_or_listed_as_exception() -> None:
    assert set(changing_routes()) == set(CALLS) | set(EXCEPTIONS)


@pytest.mark.parametrize("route", sorted(CALLS))
def test_successful_change_leaves_audit_line_with_actor(world: World, route: str) -> None:
    scope = changing_routes()[route]
    key = world.cloud.admin_key if scope == "admin" else world.cloud.make_key(world.project_id, [scope])
    actor = "admin" if scope == "admin" else key.split("_")[1]
    path, body = CALLS[route](world)
    before = audited(world, actor)
    world.cloud.clock.advance(1)

    answer = world.cloud.http(route.partition(" ")[0], path, json=body, key=key)

    assert answer.status < 300, answer.body
    new = [line for line in audited(world, actor) if line not in before]
    assert new, f"{route} left no line of {actor}"
    assert all(line["actor"] == actor and line["action"] and line["record"] for line in new)
    world.cloud.app.freeze.thaw("the next test")


def test_audit_lines_contain_no_secrets(world: World) -> None:
    secret = hashlib.sha256(b"a credential").hexdigest()
    key = world.cloud.make_key(world.project_id, ["write"])
    put = world.cloud.http(
        "PUT",
        "/v1/credentials/held",
        json={"headers": {"Authorization": secret}, "origins": ["https://files.example"]},
        key=key,
    )
    assert put.status == 204
    world.cloud.clock.advance(1)
    source = {"name": "s", "source_url": f"http://127.0.0.1:9/list?token={secret}"}
    assert world.cloud.http("POST", "/v1/subscriptions", json=source, key=key).status == 201
    lines = audited(world, key.split("_")[1])
    assert [line["action"] for line in lines] == ["subscription.create", "credential.put"]
    assert secret not in str(lines)
    assert key not in str(world.cloud.app.projects.audit.list(world.project_id, 100, None, AuditFilter()))
