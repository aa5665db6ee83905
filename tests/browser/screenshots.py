"""Pictures of the console at work, for the README: `make screenshots`."""

from __future__ import annotations

import hashlib
import http.server
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.console import Console, chromium, console
from tests.support.console_seed import fill
from tests.support.deployed import Deployed, DeployedProject, deployed_at, until

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
CONTENT = b"tide" * 250_000
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()
FLEET = [f"edge-{number:03d}" for number in range(1, 37)]
WINDOW = 15
DONE, GOING, BROKEN = 0, 115, 2


class Slow(http.server.BaseHTTPRequestHandler):
    """A source that keeps an ingest running while its picture is taken."""

    def do_GET(self) -> None:
        time.sleep(60)

    do_HEAD = do_GET


@contextmanager
def slow_source() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def submit(project: DeployedProject, path: str, targets: list[str]) -> str:
    body = {
        "biz_id": 1,
        "app_id": 1,
        "file_path": path,
        "file_name": path.rsplit("/", 1)[-1],
        "file_signature": SIGNATURE,
        "target_user": "deploy",
        "target_file_dir": "/srv/app",
        "targets": [{"agent_id": target} for target in targets],
    }
    made = project.http("POST", "/v1/downloads/batch", json=body)
    assert made.status == 202, made.body
    return str(made.json()["job_id"])


def report(project: DeployedProject, number: int, agent_id: str) -> None:
    """An agent that has finished, is downloading, or has no space left."""
    key = project.agent_key(agent_id)
    path = f"/v1/agents/{agent_id}"

    def waiting() -> Any:
        return project.cloud.http("GET", f"{path}/transfers", query={"wait": 5}, key=key).json()["items"]

    item = until(waiting, bool)[0]
    code = BROKEN if number % 17 == 5 else GOING if number % 3 == 0 else DONE
    result = {"transfer_id": item["transfer_id"], "container_id": "", "error_code": code}
    result |= {"progress": 40 + number} if code == GOING else {}
    result |= {"error_msg": "no space left: 1.0 MB needed, 0.2 MB free"} if code == BROKEN else {}
    answer = project.cloud.http("POST", f"{path}/results", json={"items": [result]}, key=key)
    assert answer.status == 200, answer.body


def at_work(channel: dict[str, int]) -> bool:
    return channel["running"] >= channel["capacity"]


def take(desk: Console, name: str) -> None:
    desk.page.wait_for_timeout(1500)
    desk.page.screenshot(path=IMAGES / f"{name}.png")


def everywhere(desk: Console, phone: Console, route: str, ready: str, name: str) -> None:
    """Wide and light in English; on a phone, dark and in Chinese."""
    for tab, suffix in ((desk, ""), (phone, "-phone")):
        tab.go(route)
        tab.page.locator(ready).first.wait_for()
        take(tab, name + suffix)


def pictures(deployed: Deployed, desk: Console, phone: Console, project: DeployedProject, source: str) -> None:
    hosts = [f"edge-{number:04d}" for number in range(1, 481)]
    job_id = submit(project, "/releases/2.5/firmware-2.5.img", hosts)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda pair: report(project, *pair), enumerate(hosts[: len(FLEET)])))
    for number, host in enumerate(hosts[: len(FLEET)]):
        group = {"groups": ["canary" if number % 6 == 0 else "north" if number % 2 else "south"]}
        assert project.http("PATCH", f"/v1/agents/{host}", json=group).status == 200
    everywhere(desk, phone, f"distribution/{job_id.replace('/', '%2F')}", "canvas.target-map", "job")
    for number in range(8):
        wanted = {"biz_id": 1, "app_id": 1, "file_path": f"/in/{number}.bin", "source_url": f"{source}/{number}.bin"}
        assert project.http("POST", "/v1/files", json=wanted).status == 202
    until(lambda: deployed.http("GET", "/v1/queue/stats", key=project.key).json()["channels"]["no_cookie"], at_work)
    # Early in a window, so that the picture shows it open.
    time.sleep(WINDOW - time.time() % WINDOW)
    submit(project, "/maps/map-tiles.bin", FLEET[:24])
    everywhere(desk, phone, "overview", ".tiles", "overview")
    everywhere(desk, phone, "exports/new", ".sheet", "export")
    everywhere(desk, phone, "fleet", "tbody tr", "fleet")
    desk.page.emulate_media(color_scheme="dark")
    everywhere(desk, phone, f"operate/projects/{project.id}", "[data-key=quotas]", "project")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        deployed_at(Path(home), CollectWindowSeconds=str(WINDOW), JobTimeoutSeconds="300") as deployed,
        slow_source() as source,
        chromium() as browser,
        console(browser, deployed) as desk,
        console(browser, deployed, width=390, language="zh-CN") as phone,
    ):
        project = deployed.project("Harbour")
        deployed.store(project, "/releases/2.5/firmware-2.5.img", CONTENT, SIGNATURE)
        fill(deployed, project.id, requests=150, jobs=120, files=20)
        phone.page.emulate_media(color_scheme="dark")
        for tab in (desk, phone):
            tab.sign_in(deployed.admin_key)
            tab.page.locator("#project select").select_option(project.id)
        pictures(deployed, desk, phone, project, source)


if __name__ == "__main__":
    main()
