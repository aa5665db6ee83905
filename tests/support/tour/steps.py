"""Calls every operation of the API once with success, in an order that a newcomer could follow."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.batches.world import BatchWorld, Business
from tests.support.exports.fill import sheet_of
from tests.support.exports.running import MACHINE
from tests.support.fleet import Fleet
from tests.support.http_servers import Handler, serve
from tests.support.ingest.running import Library
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.tour.recorder import Call, Recorder
from tidegate.errors import NotFound, ServiceUnavailable
from tidegate.files.model import upload_object

RELEASE = b"release 1.4.0\n" * 64
DIGEST = hashlib.sha256(RELEASE).hexdigest()
ROWS = [{"order": "A-1", "amount": "12.50"}, {"order": "A-2", "amount": "7.00"}]
TEMPLATE = [{"title": "Order", "name": "order"}, {"title": "Amount", "name": "amount", "style": {"type": "number"}}]


def _shop(request: Handler) -> None:
    """Acts as the newcomer's server: a list of files, a file, a paged source and a receiver of callbacks."""
    path = request.path.partition("?")[0]
    if path == "/list.json":
        host = f"http://{request.headers['Host']}"
        files = [{"url": f"{host}/releases/1.4.1.tar", "file_path": "/releases/1.4.1.tar", "size": len(RELEASE)}]
        request.answer(200, json.dumps({"files": files}).encode(), Content_Type="application/json")
    elif path.startswith("/releases/"):
        request.answer(200, RELEASE, Content_Type="application/octet-stream")
    elif path == "/orders":
        page = {"status": 200, "data": {"data": ROWS, "total": len(ROWS)}}
        request.answer(200, json.dumps(page).encode(), Content_Type="application/json")
    else:
        request.answer(204)


class Tour:
    def __init__(self, cloud: MotoCloud, shop: str) -> None:
        self.cloud = cloud
        self.shop = shop
        self.record = Recorder(cloud)
        self.admin = cloud.admin_key

    def all(self) -> list[Call]:
        self.projects()
        self.files()
        self.distribution()
        self.agents()
        self.exports()
        self.subscriptions()
        self.requests()
        self.queue()
        self.notifications()
        self.operations()
        self.ends()
        return self.record.printed()

    def call(self, operation: str, request: Any = None, *, status: int = 200, **more: Any) -> Any:
        return self.record.call(operation, request, key=more.pop("key", self.key), status=status, **more)

    def projects(self) -> None:
        call, admin = self.record.call, self.admin
        call("GET /healthz", key=None)
        body = {"name": "shop", "allow_private_urls": True}
        project_id = call("POST /v1/projects", body, key=admin, status=201)["project_id"]
        call("GET /v1/projects", key=admin)
        call("GET /v1/projects/{project_id}", key=admin, project_id=project_id)
        changes: dict[str, Any] = {"quotas": {"queued": 10000, "requests_per_s": 200}}
        changes["gse"] = {"targets": ["web-*"], "dirs": ["/data/app"], "users": ["app"]}
        call("PATCH /v1/projects/{project_id}", changes, key=admin, project_id=project_id)
        create_key = "POST /v1/projects/{project_id}/keys"
        new_key = {"scopes": ["read", "write"], "name": "ci"}
        self.key = call(create_key, new_key, key=admin, status=201, project_id=project_id)["key"]
        self.project = Project(project_id, self.key, self.cloud)
        call("GET /v1/projects/{project_id}/keys", key=admin, project_id=project_id)
        call("GET /v1/me", key=self.key)
        call("POST /v1/keys", {"name": "second operator"}, key=admin, status=201)
        call("GET /v1/keys", key=admin)
        ticket = call("POST /v1/sign-in-tickets", key=admin, status=201)["ticket"]
        call("POST /v1/sign-in", key=ticket, status=201)
        spare = self.cloud.make_key(project_id, ["read"]).split("_")[1]
        call("POST /v1/keys/{key_id}/rotate", {"overlap_s": 3600}, key=admin, status=201, key_id=spare)
        call("DELETE /v1/keys/{key_id}", key=admin, status=204, key_id=spare)
        swarm = {"swarm": "auto", "peer_networks": ["10.0.0.0/8"], "free_sites": ["dc1"]}
        call("PUT /v1/projects/{project_id}/swarm", swarm, key=admin, project_id=project_id)
        call("GET /v1/projects/{project_id}/swarm", key=admin, project_id=project_id)
        self.call("GET /v1/callback-secret", query={"origin": "https://shop.example"})
        secrets = "POST /v1/projects/{project_id}/callback-secrets"
        call(secrets, key=admin, status=201, project_id=project_id)
        previous = "DELETE /v1/projects/{project_id}/callback-secrets/previous"
        call(previous, key=admin, status=204, project_id=project_id)

    def files(self) -> None:
        body = {"biz_id": 2, "app_id": 3, "file_path": "/releases/release.tar"}
        announced = body | {"signature": DIGEST, "size": len(RELEASE)}
        self.file_id = self.call("POST /v1/files", announced, status=201)["file_id"]
        key = upload_object(self.project.id, self.file_id)
        self.cloud.client("s3").put_object(Bucket=self.cloud.app.files.bucket.name, Key=key, Body=RELEASE)
        self.call("POST /v1/files/{file_id}/complete", file_id=self.file_id)
        self.call("GET /v1/files/{file_id}", file_id=self.file_id)
        self.call("GET /v1/files", query={"biz_id": 2, "limit": 5})
        self.call("GET /v1/files/{file_id}/url", file_id=self.file_id)
        fetched = body | {"file_path": "/releases/1.4.0.tar", "source_url": f"{self.shop}/releases/1.4.0.tar"}
        self.ingest = self.call("POST /v1/files", fetched, status=202)
        large = body | {"file_path": "/releases/large.tar", "multipart": True, "size": 100 * 2**20}
        parts = self.record.cloud.http("POST", "/v1/files", json=large, key=self.key).json()
        self.call("POST /v1/files/{file_id}/parts", {"numbers": [1, 2]}, file_id=parts["file_id"])
        self.call("DELETE /v1/files/{file_id}", status=204, file_id=parts["file_id"])

    def distribution(self) -> None:
        fleet = self.fleet = Fleet(self.cloud, self.project)
        fleet._keys["host-1"] = fleet.project.agent_key("host-1")
        fleet.to_window_start()
        parcel = {
            "biz_id": 2,
            "app_id": 3,
            "file_path": "/releases/release.tar",
            "file_name": "release.tar",
            "target_user": "web",
            "target_file_dir": "/srv/releases",
            "file_signature": DIGEST,
        }
        single = parcel | {"target_agent_id": "host-1", "callback": f"{self.shop}/callbacks"}
        accepted = self.call("POST /v1/downloads", single, status=202)
        many = parcel | {"targets": [{"agent_id": "host-1"}, {"agent_id": "host-2"}]}
        self.call("POST /v1/downloads/batch", many, status=202)
        uuid, job_id = accepted["task_id"].rsplit(":", 1)[-1], accepted["job_id"]
        fleet.run_until_dispatched(job_id)
        self.host = fleet.key_of("host-1")
        inbox = self.call("GET /v1/agents/{agent_id}/transfers", key=self.host, query={"wait": 1}, agent_id="host-1")
        results = [{"transfer_id": inbox["items"][0]["transfer_id"], "container_id": "", "error_code": 0}]
        self.call("POST /v1/agents/{agent_id}/results", {"items": results}, key=self.host, agent_id="host-1")
        fleet.report("host-2", 1005, error_msg="no space left on /srv")
        fleet.step("poll_transfer", job_id)
        fleet.step("finish_job", job_id)
        self.call("GET /v1/downloads/{task}", task=uuid)
        self.call("GET /v1/downloads", query={"job_id": job_id, "status": "Failed"})
        job = fleet.job(job_id)["key"]
        self.call("GET /v1/jobs", query={"biz_id": 2})
        self.call("GET /v1/jobs/{job}", job=job)
        self.call("PATCH /v1/jobs/{job}", {"note": "ticket 17"}, job=job)
        self.call("GET /v1/jobs/{job}/targets", query={"limit": 5}, job=job)
        self.call("GET /v1/jobs/{job}/map", job=job)
        redriven = self.call("POST /v1/jobs/{job}/redrive", {"statuses": ["Failed"]}, status=202, job=job)
        self.call("POST /v1/jobs/{job}/cancel", status=202, job=redriven["key"])

    def agents(self) -> None:
        body = {"groups": ["web"], "labels": {"os": "debian"}, "uses": 20}
        of = {"project_id": self.project.id}
        token = self.call("POST /v1/enrolments", body, status=201, key=self.admin, query=of)["token"]
        enrolled = {"token": token, "agent_id": "host-3", "version": "1.0.0", "zone": "rack12"}
        key = self.call("POST /v1/agents/enrol", enrolled, status=201, key=None)["key"]
        presence = {"listen": ["10.1.2.3:7471"], "site": "dc1", "zone": "rack12", "pin": "A" * 43}
        self.call("PUT /v1/agents/{agent_id}/presence", presence, key=key, agent_id="host-3")
        self.call("GET /v1/agents", query={"group": "web"})
        self.call("GET /v1/agents/{agent_id}", agent_id="host-3")
        self.call("PATCH /v1/agents/{agent_id}", {"groups": ["web", "canary"]}, agent_id="host-3")
        self.releases(key)
        self.call("DELETE /v1/agents/{agent_id}", status=204, agent_id="host-3")

    def releases(self, host_key: str) -> None:
        contents = [self.fleet.store(content) for content in (b"first", b"second")]
        for signature in contents:
            file = {"file_path": "/conf/app.conf", "signature": signature, "target_file_dir": "/etc/app"}
            body = {
                "files": [file | {"target_user": "root", "mode": "0640"}],
                "targets": {"groups": ["web"]},
                "waves": [{"percent": 10, "wait_s": 300, "max_failed_percent": 5}],
                "hook": "reload",
                "health": {"url": "http://localhost:8080/healthz", "soak_s": 120},
                "activate": "manual",
            }
            self.call("PUT /v1/releases/{name}", body, status=201, name="app")
        has = {"releases": [{"name": "app", "revision": 1, "state": "current"}], "has": contents}
        self.call("PUT /v1/agents/{agent_id}/releases", has, key=host_key, agent_id="host-3")
        self.call("GET /v1/agents/{agent_id}/files", agent_id="host-3")
        self.call("GET /v1/releases")
        self.call("GET /v1/releases/{name}", name="app")
        self.call("GET /v1/releases/{name}/hosts", query={"limit": 5}, name="app")
        self.call("GET /v1/releases/{name}/drift", name="app")
        self.call("GET /v1/releases/{name}/revisions", name="app")
        self.call("GET /v1/releases/{name}/revisions/{number}", name="app", number=1)
        self.call("POST /v1/releases/{name}/pause", status=202, name="app")
        self.call("POST /v1/releases/{name}/resume", status=202, name="app")
        self.call("POST /v1/releases/{name}/activate", status=202, name="app")
        self.call("POST /v1/releases/{name}/gate", {"pass": True}, status=202, name="app")
        self.call("POST /v1/releases/{name}/rollback", {"to": 1}, status=202, name="app")
        self.call("DELETE /v1/releases/{name}", status=204, name="app")

    def exports(self) -> None:
        order = {
            "name": "orders",
            "type": "excel",
            "file_name": "orders.xlsx",
            "source_url": f"{self.shop}/orders",
            "template": TEMPLATE,
            "callback": f"{self.shop}/callbacks",
        }
        template = {"biz_id": 1, "app_id": 1, "file_path": "/templates/invoice.xlsx"}
        file_id = str(self.cloud.http("POST", "/v1/files", json=template, key=self.project.key).json()["file_id"])
        key, content = upload_object(self.project.id, file_id), sheet_of({"A1": "{customer}", "A2": "{.order}"})
        self.cloud.client("s3").put_object(Bucket=self.cloud.app.files.bucket.name, Key=key, Body=content)
        assert self.cloud.http("POST", f"/v1/files/{file_id}/complete", key=self.project.key).status == 200
        self.call("GET /v1/task/placeholders", query={"file_id": file_id})
        self.call("POST /v1/task/sample", {"source_url": f"{self.shop}/orders"})
        task_id = self.call("POST /v1/task", order, status=202)["task_id"]
        self._export(task_id)
        self.call("GET /v1/task", query={"task_id": task_id})
        self.call("PATCH /v1/task", {"note": "for the audit"}, query={"task_id": task_id})
        self.call("GET /v1/tasks", query={"status": "completed"})
        self.call("GET /v1/download/url", query={"task_id": task_id})
        self.call("GET /v1/download/async", status=302, query={"task_id": task_id})
        tables = {
            "name": "two tables",
            "type": "excel",
            "multi_type": "tab",
            "source_data": [ROWS, [{"total": "19.50"}]],
        }
        second = self.call("POST /v1/task/multiple", tables | {"title": ["Orders", "Sum"]}, status=202)["task_id"]
        self.call("POST /v1/tasks/delete", {"task_ids": [second]})
        self.call("POST /v1/download/sync", {"type": "csv", "source_data": ROWS, "template": TEMPLATE})
        self.call("POST /v1/download/sync/multiple", {"type": "excel", "source_data": [ROWS, ROWS]})
        query = {"type": "csv", "source_data": json.dumps(ROWS)}
        self.call("GET /v1/download/sync", query=query)
        self.call("GET /v1/download/sync/multiple", query={"type": "excel", "source_data": json.dumps([ROWS])})
        self._schedules()

    def _schedules(self) -> None:
        order = {"name": "orders", "type": "excel", "file_name": "orders-{date}", "source_url": f"{self.shop}/orders"}
        schedule = self.call(
            "POST /v1/export-schedules", order | {"schedule": "rate(1 minute)", "timezone": "Asia/Shanghai"}, status=201
        )
        in_path = {"schedule_id": schedule["schedule_id"]}
        self.call("GET /v1/export-schedules")
        self.call("GET /v1/export-schedules/{schedule_id}", **in_path)
        self.cloud.clock.advance(60)
        self.cloud.invoke("start_scheduled_exports", {})
        self.call("GET /v1/export-schedules/{schedule_id}/runs", **in_path)
        source_url = f"{order['source_url']}?from={{from}}&to={{to}}"
        change = {"schedule": "cron(0 6 * * ? *)", "file_name": "orders-{date}", "source_url": source_url}
        self.call("PATCH /v1/export-schedules/{schedule_id}", change, **in_path)
        self.call("POST /v1/export-schedules/{schedule_id}/pause", **in_path)
        self.call("POST /v1/export-schedules/{schedule_id}/resume", **in_path)
        self.call("DELETE /v1/export-schedules/{schedule_id}", status=204, **in_path)
        tables = {
            "name": "two tables",
            "type": "excel",
            "source_url": [f"{self.shop}/orders", f"{self.shop}/orders"],
        }
        self.call("POST /v1/export-schedules/multiple", tables | {"schedule": "cron(0 6 ? * MON *)"}, status=201)

    def _export(self, task_id: str) -> None:
        """Runs the steps of the export's state machine."""
        self.cloud.deliver("AdmissionQueue")
        request = self.cloud.app.queue.get(self.project.id, task_id)
        state = {"project_id": self.project.id, "request_id": task_id, "attempt": request.attempt}
        step = "pull"
        while step in MACHINE:
            state = self.cloud.invoke(MACHINE[step], state)
            step = state["next"]

    def subscriptions(self) -> None:
        cookie = {"headers": {"Cookie": "session=4711"}, "origins": ["https://files.example"]}
        self.call("PUT /v1/credentials/{name}", cookie, status=204, name="files-example")
        self.call("GET /v1/credentials")
        source = {"source_url": f"{self.shop}/list.json", "include": ["*.tar"]}
        self.call("POST /v1/subscriptions/preview", source)
        body = source | {"name": "releases", "schedule": "rate(6 hours)", "biz_id": 2, "app_id": 3}
        subscription_id = self.call("POST /v1/subscriptions", body, status=201)["subscription_id"]
        self.call("GET /v1/subscriptions")
        self.call("POST /v1/subscriptions/{subscription_id}/download", status=202, subscription_id=subscription_id)
        Library(self.cloud, self.project).run()
        self.call("GET /v1/subscriptions/{subscription_id}", subscription_id=subscription_id)
        self.call("GET /v1/subscriptions/{subscription_id}/tasks", subscription_id=subscription_id)
        self.cloud.clock.advance(6 * 3600)
        self.cloud.invoke("scan_subscriptions", {})
        self.call("GET /v1/subscriptions/{subscription_id}/runs", subscription_id=subscription_id)
        changes = {"schedule": "cron(0 3 * * ? *)", "timezone": "Asia/Shanghai", "priority": 7}
        self.call("PATCH /v1/subscriptions/{subscription_id}", changes, subscription_id=subscription_id)
        self.call("POST /v1/subscriptions/{subscription_id}/pause", subscription_id=subscription_id)
        self.call("POST /v1/subscriptions/{subscription_id}/resume", subscription_id=subscription_id)
        self.call("DELETE /v1/subscriptions/{subscription_id}", status=204, subscription_id=subscription_id)
        self.call("DELETE /v1/credentials/{name}", status=204, name="files-example")

    def requests(self) -> None:
        check = {"type": "check", "payload": {"file_id": self.file_id}}
        request_id = self.call("POST /v1/requests", check, status=202)["request_id"]
        self.call("POST /v1/requests/{request_id}/prioritize", {"priority": 1}, request_id=request_id)
        self.call("POST /v1/requests/{request_id}/pause", request_id=request_id)
        self.call("POST /v1/requests/{request_id}/resume", request_id=request_id)
        self.call("GET /v1/queue", query={"status": "queued"})
        self.call("POST /v1/requests/{request_id}/cancel", request_id=request_id)
        missing = {"source_url": f"{self.shop.rpartition(':')[0]}:9/gone", "file_path": "/gone"}
        broken = self.cloud.http(
            "POST", "/v1/requests", json={"type": "download", "payload": missing}, key=self.key
        ).json()["request_id"]
        self.cloud.deliver("AdmissionQueue")
        running = self.cloud.app.queue.get(self.project.id, broken)

        self.cloud.app.queue.finish(self.project.id, broken, running.attempt, error=NotFound("the source answered 404"))
        self.call("GET /v1/requests/{request_id}", request_id=broken)
        self._waits_for_its_host()
        self.call("POST /v1/requests/{request_id}/retry", request_id=broken)
        done = self.ingest["request_id"]
        self.call("GET /v1/requests/{request_id}/log", request_id=done)
        self.call("POST /v1/requests/bulk", {"action": "cancel", "type": "download", "status": "queued"})

    def queue(self) -> None:
        self.call("GET /v1/queue/stats")
        self.call("POST /v1/queue/capacity", {"export": 8}, key=self.admin)
        self.call("POST /v1/queue/pause", {"scope": "export"}, key=self.admin)
        self.call("POST /v1/queue/resume", {"scope": "export"}, key=self.admin)

    def notifications(self) -> None:
        self.cloud.deliver("CallbacksQueue")
        listed = self.call("GET /v1/callbacks", query={"state": "delivered"})
        delivery_id = listed["items"][0]["delivery_id"]
        self.call("GET /v1/callbacks/{delivery_id}", delivery_id=delivery_id)
        self.call("POST /v1/callbacks/{delivery_id}/redeliver", status=202, delivery_id=delivery_id)
        self.call("POST /v1/ws-tickets", status=201)

    def _waits_for_its_host(self) -> None:
        queue = self.cloud.app.queue
        waiting = queue.submit(self.project.id, "check", payload={})
        self.cloud.deliver("AdmissionQueue")
        busy = ServiceUnavailable("the source answered 503", retry_after=600)
        queue.finish(self.project.id, waiting.request_id, 1, error=busy)
        self.call("POST /v1/requests/{request_id}/retry-now", request_id=waiting.request_id)
        self.cloud.app.ingest.host_pauses.note(self.project.id, "https://files.example.com/list", 600)
        self.call("GET /v1/host-pauses")
        self.call("DELETE /v1/host-pauses/{origin}", status=204, origin="https:files.example.com")

    def operations(self) -> None:
        self.call("GET /v1/overview")
        self.call("GET /v1/system", key=self.admin)
        self.call("GET /v1/stats")
        self.call("GET /v1/audit", query={"action": "file.announce", "limit": 2})
        self.call("GET /v1/compensation")
        self.call("POST /v1/compensation/trigger", key=self.admin)
        self.call("POST /v1/ops/freeze", {"reason": "the table is restored"}, key=self.admin)
        self.call("POST /v1/ops/reconcile", key=self.admin)
        self.call("POST /v1/ops/thaw", key=self.admin)

    def ends(self) -> None:
        day = self.cloud.clock().date().isoformat()
        self.call("POST /v1/cleanup", key=self.admin)
        self.call("GET /v1/archive", query={"day": day})


class BatchTour(Tour):
    """The operations of batches, on a cloud whose state machines run."""

    def all(self) -> list[Call]:
        business = Business()
        with serve(business) as business.port:
            self.project = self.cloud.project("loyalty")
            self.key = self.project.key
            self.world = BatchWorld(self.cloud, self.project, business)
            self._registry(business)
            self._run(business)
            self._recurring()
            self._business_side(business)
        return self.record.printed()

    def _registry(self, business: Business) -> None:
        body = {"name": "loyalty", "process_url": business.url("/process"), "rate": 200}
        self.biz_id = self.call("POST /v1/biz", body, status=201)["biz_id"]
        self.call("GET /v1/biz")
        self.call("GET /v1/biz/{biz_id}", biz_id=self.biz_id)
        self.call("PUT /v1/biz/{biz_id}", body, biz_id=self.biz_id)

    def _run(self, business: Business) -> None:
        fails = {"result": "error", "msg": "no such account"}
        business.answers["/process"] = lambda item: (200, fails if item["index"] == 1 else {"result": "ok"})
        body = {
            "biz_id": self.biz_id,
            "name": "points",
            "total": 3,
            "rate": 50,
            "job_data": {"points": 10},
            "on_item_failure": "skip",
            "max_failed": 2,
            "retries": 1,
        }
        batch_id = self.call("POST /v1/batches", body, status=201)["batch_id"]
        in_path: dict[str, Any] = {"batch_id": batch_id}
        self.call("PATCH /v1/batches/{batch_id}", {"rate": 100}, status=202, **in_path)
        self.call("POST /v1/batches/{batch_id}/dry-run", {"items": 2}, **in_path)
        self.call("POST /v1/batches/{batch_id}/start", status=202, **in_path)
        self.world.admit()
        self.world.ended(batch_id)
        self.call("GET /v1/batches/{batch_id}", **in_path)
        self.call("GET /v1/batches", query={"status": "finished"})
        self.call("GET /v1/batches/{batch_id}/items", query={"state": "failed"}, **in_path)
        self.call("GET /v1/batches/{batch_id}/results", **in_path)
        line = {"items": [{"message": "account 1 was closed", "index": 1, "level": "warning"}]}
        self.call("POST /v1/batches/{batch_id}/logs", line, status=201, **in_path)
        self.call("GET /v1/batches/{batch_id}/logs", query={"index": 1}, **in_path)
        self.call("POST /v1/batches/{batch_id}/logs/export", status=202, **in_path)
        self.call("POST /v1/batches/{batch_id}/redrive", {"states": ["failed"]}, status=201, **in_path)

    def _recurring(self) -> None:
        batch = {"biz_id": self.biz_id, "name": "points", "total": 3, "rate": 50}
        body = {"schedule": "rate(1 minute)", "batch": batch}
        schedule = self.call("POST /v1/batch-schedules", body, status=201)
        in_path: dict[str, Any] = {"schedule_id": schedule["schedule_id"]}
        self.call("GET /v1/batch-schedules")
        self.call("GET /v1/batch-schedules/{schedule_id}", **in_path)
        self.cloud.clock.advance(60)
        self.cloud.invoke("start_scheduled_batches", {})
        self.call("GET /v1/batch-schedules/{schedule_id}/runs", **in_path)
        change = {"paused": True, "batch": {"rate": 20}, "revision": schedule["revision"]}
        self.call("PATCH /v1/batch-schedules/{schedule_id}", change, **in_path)
        self.call("DELETE /v1/batch-schedules/{schedule_id}", status=204, **in_path)

    def _business_side(self, business: Business) -> None:
        unused = self.world.register()
        self.call("DELETE /v1/batches/{batch_id}", status=204, batch_id=self.world.create(unused))
        self.call("DELETE /v1/biz/{biz_id}", status=204, biz_id=unused)
        biz_id = self.world.register("before_run", auth_code="4711")
        in_path: dict[str, Any] = {"batch_id": self.world.create(biz_id)}
        code = {"auth_code": "4711"}
        self.call("POST /v1/batches/{batch_id}/data", code | {"job_data": {"points": 20}}, status=202, **in_path)
        self.world.act(in_path["batch_id"], "start")
        self.call("POST /v1/batches/{batch_id}/biz-start", code, status=202, **in_path)
        self.call("POST /v1/batches/{batch_id}/stop", status=202, **in_path)
        other = self.world.create(biz_id)
        self.world.act(other, "start")
        reason = code | {"reason": "closed for the night"}
        self.call("POST /v1/batches/{batch_id}/biz-stop", reason, status=202, batch_id=other)
        business.answers["/process"] = lambda item: (202, {})
        asynchronous = self.world.create(self.biz_id, total=1, ack="async", item_timeout=60)
        self.world.act(asynchronous, "start")
        self.world.admit()
        while not any(item["batch_id"] == asynchronous for item in business.calls()):
            time.sleep(0.05)
        path = "POST /v1/batches/{batch_id}/items/{index}/result"
        self.call(path, {"result": "ok", "attempt": 1}, status=202, batch_id=asynchronous, index=0)
        self.world.ended(asynchronous)


@contextmanager
def shop() -> Iterator[str]:
    with serve(_shop) as port:
        yield f"http://127.0.0.1:{port}"


def tour() -> list[Call]:
    with shop() as address:
        with MotoCloud() as cloud:
            calls = Tour(cloud, address).all()
        with MotoCloud(machines_run=True) as cloud:
            calls += BatchTour(cloud, address).all()
    return calls
