"""The servers printed in the contract pages run against the API, exactly as they are printed."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import openpyxl
import pytest

from tests.support.exports.running import MACHINE
from tests.support.fleet import CONTENT, Fleet
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.patience import idle_clock
from tests.support.template import ROOT

PAGES = ROOT / "docs" / "contracts"


def printed(page: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text("utf-8"), re.S)
    return str(code)


@contextmanager
def running(page: str, secret: str | Callable[[str], str]) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Starts the page's server on a free port, with a secret or that of its URL, and waits until it listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    given = secret if isinstance(secret, str) else secret(f"http://127.0.0.1:{port}/")
    command = [sys.executable, "-c", printed(page), str(port), given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        deadline = idle_clock() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, f"{page} ended"
            assert idle_clock() < deadline, f"{page} does not listen"
            time.sleep(0.05)
        yield port, process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def api(cloud: MotoCloud) -> Iterator[str]:
    """Serves the API of the cloud over HTTP, and the presigned URLs of its bucket."""

    def answer(request: Handler) -> None:
        path = urlsplit(request.path)
        if path.path.startswith("/bucket/"):
            key = path.path.removeprefix("/bucket/")
            stored = cloud.client("s3").get_object(Bucket=cloud.app.files.bucket.name, Key=key)
            request.answer(200, stored["Body"].read())
            return
        key = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        body = request.body().decode() or None
        made = cloud.http(request.command, request.path, key=key or None, body=body)
        here = f"http://{request.headers['Host']}/bucket/"
        text = re.sub(
            rb'https://[^"/]+/(?:[^"/]*files[^"/]*/)?(content/[^"?]+)\?[^"]*', here.encode() + rb"\1", made.body
        )
        request.answer(made.status, text, Content_Type=made.headers.get("content-type", ""))

    with serve(answer) as port:
        yield f"http://127.0.0.1:{port}"


def run_export(cloud: MotoCloud, project: Project, task_id: str) -> None:
    cloud.deliver("AdmissionQueue")
    request = cloud.app.queue.get(project.id, task_id)
    state = {"project_id": project.id, "request_id": task_id, "attempt": request.attempt}
    step = "pull"
    while step in MACHINE:
        state = cloud.invoke(MACHINE[step], state)
        step = state["next"]


def file_of(cloud: MotoCloud, project: Project, task_id: str) -> bytes:
    result = cloud.app.queue.get(project.id, task_id).result
    assert result
    stored = cloud.client("s3").get_object(Bucket=cloud.app.settings.files_bucket, Key=result["key"])
    return bytes(stored["Body"].read())


def secret_of(cloud: MotoCloud, project: Project, whose: str) -> str | Callable[[str], str]:
    return cloud.callback_secret(project.id) if whose == "shared" else lambda url: cloud.origin_secret(project.id, url)


BOTH_SECRETS = pytest.mark.parametrize("whose", ["own", "shared"])


@BOTH_SECRETS
def test_printed_source_is_pulled_to_its_last_row(cloud: MotoCloud, project: Project, whose: str) -> None:
    with running("source.md", secret_of(cloud, project, whose)) as (port, _):
        body = {"name": "orders", "source_url": f"http://127.0.0.1:{port}/orders"}
        task_id = cloud.http("POST", "/v1/task", json=body, key=project.key).json()["task_id"]
        run_export(cloud, project, task_id)
    lines = file_of(cloud, project, task_id).decode().splitlines()
    assert (len(lines), lines[-1]) == (2432, "A-2430,2430.50")


def test_printed_source_refuses_another_secret(cloud: MotoCloud, project: Project) -> None:
    with running("source.md", "whsec_" + "QUJD" * 8) as (port, _):
        body = {"name": "orders", "source_url": f"http://127.0.0.1:{port}/orders"}
        task_id = cloud.http("POST", "/v1/task", json=body, key=project.key).json()["task_id"]
        cloud.deliver("AdmissionQueue")
        state = {"project_id": project.id, "request_id": task_id, "attempt": 1}
        cloud.invoke("pull_pages", state)
    shown = cloud.http("GET", "/v1/task", query={"task_id": task_id}, key=project.key).json()
    assert "no signature fits" in json.dumps(shown)


@BOTH_SECRETS
def test_printed_business_processes_items_and_names_a_failure(running_cloud: MotoCloud, whose: str) -> None:
    cloud, project = running_cloud, running_cloud.project()
    with running("batch.md", secret_of(cloud, project, whose)) as (port, _):
        biz = {"name": "loyalty", "process_url": f"http://127.0.0.1:{port}/process"}
        biz_id = cloud.http("POST", "/v1/biz", json=biz, key=project.key).json()["biz_id"]
        batch = {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100, "retries": 1, "on_item_failure": "skip"}
        made = cloud.http("POST", "/v1/batches", json={**batch, "max_failed": 1}, key=project.key).json()["batch_id"]
        assert cloud.http("POST", f"/v1/batches/{made}/start", key=project.key).status == 202
        cloud.deliver("AdmissionQueue")
        deadline = idle_clock() + 30
        while (shown := cloud.http("GET", f"/v1/batches/{made}", key=project.key).json())["status"] != "finished":
            assert idle_clock() < deadline, shown
            time.sleep(0.1)
    (item,) = cloud.http("GET", f"/v1/batches/{made}/items", query={"state": "failed"}, key=project.key).json()["items"]
    assert (item["index"], "no such account" in json.dumps(item["answer"])) == (3, True)


@BOTH_SECRETS
def test_printed_receiver_verifies_and_prints_a_callback_once(cloud: MotoCloud, project: Project, whose: str) -> None:
    with running("callback.md", secret_of(cloud, project, whose)) as (port, process):
        body = {"name": "orders", "source_data": [{"a": 1}], "callback": f"http://127.0.0.1:{port}/callbacks"}
        task_id = cloud.http("POST", "/v1/task", json=body, key=project.key).json()["task_id"]
        run_export(cloud, project, task_id)
        cloud.deliver("CallbacksQueue")
        (delivery,) = cloud.http("GET", "/v1/callbacks", key=project.key).json()["items"]
        assert delivery["callback_state"] == "delivered"
        assert process.stdout is not None
        assert process.stdout.readline() == "task.completed completed\n"
        unsigned = subprocess.run(
            [sys.executable, "-c", f"from urllib.request import *; urlopen('http://127.0.0.1:{port}/', b'{{}}')"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "401" in unsigned.stderr


def test_printed_template_gives_two_header_rows(cloud: MotoCloud, project: Project) -> None:
    with api(cloud) as url:
        submitted = subprocess.run(
            [sys.executable, "-c", printed("template.md"), url, project.key], capture_output=True, text=True, check=True
        )
    task_id = submitted.stdout.strip()
    run_export(cloud, project, task_id)
    sheet = openpyxl.load_workbook(io.BytesIO(file_of(cloud, project, task_id))).active
    assert sheet is not None
    rows = [[cell for cell in row if cell is not None] for row in sheet.iter_rows(values_only=True)]
    assert rows[:3] == [["Order", "Money"], ["Net", "Tax"], ["A-1", 10, 1.9]]


def test_printed_agent_delivers_and_reports_a_file(cloud: MotoCloud, tmp_path: Path) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit("host-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    with api(cloud) as url:
        arguments = [url, fleet.key_of("host-1"), "host-1", str(tmp_path)]
        subprocess.run([sys.executable, "-c", printed("agent.md"), *arguments], check=True)
    placed = (tmp_path / "opt/app/app.bin").read_bytes()
    assert hashlib.sha256(placed).digest() == hashlib.sha256(CONTENT).digest()
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"host-1": "Success"}


@pytest.mark.parametrize("page", ["source.md", "batch.md", "callback.md", "template.md", "agent.md"])
def test_printed_server_has_at_most_32_lines(page: str) -> None:
    assert len([line for line in printed(page).splitlines() if line.strip()]) <= 32
