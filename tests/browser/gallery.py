"""Takes a picture of every page of the console with records, for review: `python -m tests.browser.gallery`.

Both themes, both languages, at 390 and 1440 pixels, in `.local/gallery`. Names of pages as arguments narrow it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.browser.schedules import BATCHES, EXPORTS, fire
from tests.browser.screenshots import CONTENT, SIGNATURE, report, submit
from tests.support.console import Console, chromium, console
from tests.support.console_seed import fill
from tests.support.deployed import Deployed, DeployedProject, deployed_at, until

GALLERY = Path(__file__).resolve().parents[2] / ".local" / "gallery"
LOOKS = list(product((1440, 390), ("en-GB", "zh-CN"), ("light", "dark")))


@dataclass(frozen=True)
class Shown:
    """The ids of the records whose pages are shown."""

    job: str
    task: str
    host: str
    export: str
    failed_export: str
    batch: str
    subscription: str
    request: str
    project: str
    export_schedule: str
    batch_schedule: str

    def pages(self) -> dict[str, str]:
        return {
            "overview": "overview",
            "distribution": "distribution",
            "job": f"distribution/{quote(self.job, safe='')}",
            "task": f"tasks/{self.task}",
            "submit": "distribution/new",
            "fleet": "fleet",
            "host": f"fleet/{self.host}",
            "releases": "releases",
            "release": "releases/edge-config",
            "files": "files",
            "ingest": "ingest",
            "subscription": f"ingest/{self.subscription}",
            "new-subscription": "ingest/new",
            "exports": "exports",
            "export": f"exports/{self.export}",
            "failed-export": f"exports/{self.failed_export}",
            "new-export": "exports/new",
            "export-schedules": "export-schedules",
            "export-schedule": f"export-schedules/{self.export_schedule}",
            "new-export-schedule": "export-schedules/new",
            "batches": "batches",
            "batch-schedules": "batch-schedules",
            "batch-schedule": f"batch-schedules/{self.batch_schedule}",
            "batch": f"batches/{self.batch}",
            "businesses": "businesses",
            "queue": "queue",
            "request": f"queue/{self.request}",
            "callbacks": "callbacks",
            "projects": "operate/projects",
            "project": f"operate/projects/{self.project}",
            "keys": "operate/keys",
            "credentials": "operate/credentials",
            "audit": "operate/audit",
            "archive": "operate/archive",
            "system": "operate/system",
            "unknown": "nowhere",
        }


def shop(server: HTTPServer) -> None:
    """A source, a business and a receiver of callbacks."""
    rows = [{"order": f"A-{number}", "amount": f"{number}.50"} for number in range(240)]

    def page(request: Request) -> Response:
        first = int(request.args["page"]) * int(request.args["page_size"])
        # The total is wrong, so that a warning is shown.
        found = {"data": rows[first : first + int(request.args["page_size"])], "total": 250}
        return Response(json.dumps({"status": 200, "msg": "", "data": found}), content_type="application/json")

    server.expect_request("/rows").respond_with_handler(page)
    server.expect_request("/hook").respond_with_data("ok")
    server.expect_request("/broken-hook").respond_with_data("no", status=500)

    def item(request: Request) -> Response:
        index = request.get_json()["index"]
        answer = '{"result": "abandon", "msg": "no such account"}' if index % 9 == 4 else '{"result": "ok"}'
        return Response(answer, content_type="application/json")

    server.expect_request("/item").respond_with_handler(item)
    files = [{"url": server.url_for(f"/f/{number}.bin"), "file_path": f"/mirror/{number}.bin"} for number in range(4)]
    server.expect_request("/list.json").respond_with_json({"files": files})
    server.expect_request("/f/3.bin").respond_with_data("gone", status=404)
    for number in range(3):
        server.expect_request(f"/f/{number}.bin").respond_with_data(f"file {number}" * 1000)


def seeded(deployed: Deployed, project: DeployedProject, server: HTTPServer, hosts: int = 320) -> Shown:
    """Creates records of every kind: completed, failed, running and waiting."""

    def made(path: str, body: Mapping[str, object]) -> dict[str, str]:
        answer = project.http("POST", path, json=body)
        assert answer.status in (201, 202), answer.body
        found: dict[str, str] = answer.json()
        return found

    shop(server)
    fill(deployed, project.id, requests=150, jobs=60, files=20)
    deployed.store(project, "/releases/2.5/firmware-2.5.img", CONTENT, SIGNATURE)
    names = [f"edge-{number:04d}" for number in range(1, hosts + 1)]
    job = submit(project, "/releases/2.5/firmware-2.5.img", names)
    hook, orders = server.url_for("/hook"), server.url_for("/rows")
    wanted = {"name": "Orders of November", "type": "excel", "source_url": orders, "callback": hook}
    export = made("/v1/task", wanted)["task_id"]
    failing = {"name": "Orders of October", "source_url": server.url_for("/no")}
    failing["callback"] = server.url_for("/broken-hook")
    failed = made("/v1/task", failing)["task_id"]
    biz = made("/v1/biz", {"name": "Loyalty points", "process_url": server.url_for("/item"), "rate": 50})["biz_id"]
    wanted_batch = {"biz_id": biz, "name": "Points for autumn", "total": 5000, "rate": 12, "on_item_failure": "skip"}
    batch = made("/v1/batches", wanted_batch)["batch_id"]
    made(f"/v1/batches/{batch}/start", {})
    nightly = {"name": "Orders of the day", "source_url": orders, "file_name": "orders-{date}.csv"}
    daily = made("/v1/export-schedules", nightly | {"schedule": "cron(0 2 * * ? *)"})["schedule_id"]
    weekly = made("/v1/export-schedules", wanted | {"schedule": "cron(30 4 ? * MON-FRI *)"})["schedule_id"]
    project.http("POST", f"/v1/export-schedules/{weekly}/pause")
    points = {"biz_id": biz, "name": "Points of the day", "total": 40, "rate": 20, "on_item_failure": "skip"}
    repeated = made("/v1/batch-schedules", {"schedule": "rate(1 hour)", "batch": points})["schedule_id"]
    fire(deployed, daily, EXPORTS)
    fire(deployed, repeated, BATCHES)
    source = {"name": "Mirror of releases", "source_url": server.url_for("/list.json"), "schedule": "cron(0 3 * * ? *)"}
    subscription = made("/v1/subscriptions", source)["subscription_id"]
    project.http("POST", f"/v1/subscriptions/{subscription}/download")
    stored = {"headers": {"Authorization": "Bearer secret"}, "origins": ["https://files.example"]}
    assert project.http("PUT", "/v1/credentials/vendor", json=stored).status in (200, 201, 204)
    quotas = {"quotas": {"stored_bytes": 5_000_000_000, "queued": 500, "requests_per_s": 200}}
    places = {"deliver_to": ["acme-reports/shop/*"], "read_from": ["s3://acme-data/orders/*", "dynamodb://orders"]}
    granted = {"gse": {"targets": ["web-*"], "dirs": ["/data/app"], "users": ["app"]}}
    deployed.http("PATCH", f"/v1/projects/{project.id}", json=quotas | places | granted, key=deployed.admin_key)
    for number, host in enumerate(names[:24]):
        report(project, number, host)
        project.http("PATCH", f"/v1/agents/{host}", json={"groups": ["canary" if number % 6 == 0 else "north"]})
    roll_out(deployed, project, names[:24])
    until(lambda: project.http("GET", f"/v1/subscriptions/{subscription}/tasks").json()["items"], bool)
    request = project.http("GET", "/v1/queue", query={"status": "failed"}).json()["items"][0]["request_id"]
    task = project.http("GET", "/v1/downloads", query={"job_id": job, "limit": 1}).json()["items"][0]["task_id"]
    until(
        lambda: project.http("GET", "/v1/task", query={"task_id": export}).json()["status"],
        lambda at: at == "completed",
    )
    return Shown(
        job=job,
        task=task.rsplit(":", 1)[-1],
        host=names[0],
        export=export,
        failed_export=failed,
        batch=batch,
        subscription=subscription,
        request=request,
        project=project.id,
        export_schedule=daily,
        batch_schedule=repeated,
    )


def roll_out(deployed: Deployed, project: DeployedProject, names: list[str]) -> None:
    """A revision that has passed, and one that stopped in its first wave."""
    path, keys = "/v1/releases/edge-config", {name: project.agent_key(name) for name in names}
    for number, content in enumerate((b"port = 80", b"port = eighty"), 1):
        signature = hashlib.sha256(content).hexdigest()
        deployed.store(project, "/conf/edge.conf", content, signature)
        place = {"target_file_dir": "/etc/edge", "target_user": "root", "mode": "0640"}
        body: dict[str, object] = {"files": [{"file_path": "/conf/edge.conf", "signature": signature, **place}]}
        body |= {"targets": {"groups": ["north", "canary"]}, "hook": "reload", "on_failure": "stop"}
        waves = {"waves": [{"percent": 10, "wait_s": 300}, {"percent": 50, "wait_s": 300}]} if number == 2 else {}
        assert project.http("PUT", path, json=body | waves).status == 201
        for name in names:
            report: dict[str, object] = {"name": "edge-config", "revision": number, "state": "current"}
            if number == 2:
                hook = {"code": 1, "output": "edge: bad port in line 1"}
                report |= {"state": "failed", "reason": "the hook failed with 1", "hook": hook, "placed": 1}
            goals = deployed.http("PUT", f"/v1/agents/{name}/releases", key=keys[name], json={}).json()["items"]
            if any(goal["revision"] == number for goal in goals):
                sent = {"releases": [report]}
                assert deployed.http("PUT", f"/v1/agents/{name}/releases", key=keys[name], json=sent).status == 200
        ended = "converged" if number == 1 else "failed"
        until(lambda: project.http("GET", path).json()["status"], lambda now, ended=ended: now == ended)  # type: ignore[misc]


def take(tab: Console, name: str, route: str, look: str) -> None:
    tab.go(route)
    tab.page.locator("h1").first.wait_for()
    tab.page.locator(".skeleton").wait_for(state="detached")
    tab.page.wait_for_timeout(700)
    tab.page.screenshot(path=GALLERY / f"{name}-{look}.png", full_page=True)


def gallery(deployed: Deployed, browser: Browser, shown: Shown, names: list[str]) -> None:
    GALLERY.mkdir(parents=True, exist_ok=True)
    for width, language, theme in LOOKS:
        with console(browser, deployed, width=width, language=language) as tab:
            tab.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            tab.sign_in(deployed.admin_key)
            tab.page.locator("#project select").select_option(shown.project)
            for name, route in shown.pages().items():
                if not names or name in names:
                    take(tab, name, route, f"{width}-{language[:2]}-{theme}")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as home,
        deployed_at(Path(home), CollectWindowSeconds="5", JobTimeoutSeconds="600") as deployed,
        HTTPServer(threaded=True) as server,
        chromium() as browser,
    ):
        shown = seeded(deployed, deployed.project("Harbour"), server)
        gallery(deployed, browser, shown, sys.argv[1:])


if __name__ == "__main__":
    main()
