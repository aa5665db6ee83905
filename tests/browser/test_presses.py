"""Buttons that no other test uses: each is clicked once and its effect is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from pytest_httpserver import HTTPServer

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject, until


@pytest.fixture
def office(browser: Browser, deployed: Deployed, project: DeployedProject) -> Iterator[Console]:
    """A console that is signed in with the admin key, in a project."""
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        opened.page.locator("#project select").select_option(project.id)
        yield opened


def press(desk: Console, name: str, *, inside: str = "#view") -> None:
    desk.page.locator(inside).get_by_role("button", name=name, exact=True).first.click()


def confirm(desk: Console, name: str) -> None:
    desk.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


def told(desk: Console, text: str) -> None:
    expect(desk.page.locator(".toast", has_text=text).first).to_be_visible()


def made(project: DeployedProject, path: str, body: dict[str, Any]) -> Any:
    answer = project.http("POST", path, json=body)
    assert answer.status in (201, 202), answer.body
    return answer.json()


def test_admin_uses_every_button_of_a_project(office: Console, project: DeployedProject) -> None:
    office.go(f"operate/projects/{project.id}")
    press(office, "New secret")
    confirm(office, "New secret")
    expect(office.page.get_by_role("dialog")).to_contain_text("whsec_")
    office.page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
    press(office, "Retire the old one")
    confirm(office, "Retire the old one")
    told(office, "retired")
    press(office, "Change", inside="[data-key=swarm]")
    office.page.get_by_role("dialog").locator("select[name=swarm]").select_option("off")
    confirm(office, "Save")
    expect(office.page.locator("[data-key=swarm]")).to_contain_text("Off")


def test_admin_reads_the_secret_of_one_receiver(office: Console, project: DeployedProject) -> None:
    office.go(f"operate/projects/{project.id}")
    press(office, "Secret of one receiver")
    office.page.get_by_role("dialog").locator("input[name=origin]").fill("https://shop.example")
    confirm(office, "Show")
    found = project.http("GET", "/v1/callback-secret?origin=https://shop.example").json()
    expect(office.page.get_by_role("dialog")).to_contain_text("https://shop.example:443")
    expect(office.page.get_by_role("dialog")).to_contain_text(found["callback_secret"])


def test_admin_creates_and_revokes_an_admin_key(office: Console) -> None:
    office.go("operate/keys")
    press(office, "New key")
    box = office.page.get_by_role("dialog")
    box.locator("input[name=name]").fill("second operator")
    confirm(office, "Create")
    expect(box).to_contain_text("tg_key")
    box.get_by_role("button", name="Close").last.click()
    row = office.page.locator("tbody tr", has_text="second operator")
    row.get_by_role("button", name="Revoke").click()
    confirm(office, "Revoke")
    expect(row.locator(".badge")).to_have_text("Revoked")


def test_admin_cleans_up_and_sees_the_week(office: Console) -> None:
    office.go("operate/archive")
    press(office, "Clean up now")
    confirm(office, "Clean up now")
    expect(office.page.locator(".toast")).to_be_visible()
    office.go("queue")
    press(office, "Last seven days")
    expect(office.page.get_by_role("dialog")).to_be_visible()


def test_source_is_paused_resumed_changed_and_deleted(desk: Console, project: DeployedProject) -> None:
    wanted = {"name": "Mirror", "source_url": "https://files.example/list.json", "schedule": "rate(1 day)"}
    source = made(project, "/v1/subscriptions", wanted)["subscription_id"]
    badge = desk.page.locator(".page-head .badge")
    desk.go(f"ingest/{source}")
    press(desk, "Pause")
    expect(badge).to_have_text("Paused")
    press(desk, "Resume")
    expect(badge).to_have_text("Active")
    desk.go(f"ingest/{source}/change")
    desk.page.locator("input[name=name]").fill("Mirror of all")
    desk.page.get_by_text("Limits on reading the source").click()
    desk.page.locator("input[name=delay_s]").fill("2")
    press(desk, "Save")
    expect(desk.page.get_by_role("heading", name="Mirror of all")).to_be_visible()
    kept = project.http("GET", f"/v1/subscriptions/{source}").json()
    assert kept["politeness"]["delay_s"] == 2
    press(desk, "Delete")
    confirm(desk, "Delete")
    expect(desk.page.get_by_role("heading", name="Ingest")).to_be_visible()


def test_file_credential_and_host_are_deleted(desk: Console, project: DeployedProject) -> None:
    desk.deployed.store(project, "/old.bin", b"old", hashlib.sha256(b"old").hexdigest())
    desk.go("files")
    desk.page.locator("tbody tr", has_text="old.bin").get_by_role("button", name="Delete").click()
    confirm(desk, "Delete")
    expect(desk.page.locator("tbody tr", has_text="old.bin")).to_have_count(0)
    body = {"headers": {"X-Token": "t"}, "origins": ["https://files.example"]}
    project.http("PUT", "/v1/credentials/old", json=body)
    desk.go("operate/credentials")
    desk.page.locator("tbody tr", has_text="old").get_by_role("button", name="Delete").click()
    confirm(desk, "Delete")
    expect(desk.page.locator("tbody tr", has_text="old")).to_have_count(0)
    key = project.agent_key("old-host")
    project.cloud.http("GET", "/v1/agents/old-host/transfers", query={"wait": 0}, key=key)
    desk.go("fleet/old-host")
    press(desk, "Forget host")
    confirm(desk, "Forget host")
    told(desk, "forg")


def test_request_is_paused_resumed_and_moved_to_the_front(office: Console, project: DeployedProject) -> None:
    paused = office.deployed.http("POST", "/v1/queue/pause", json={"scope": "no_cookie"}, key=office.deployed.admin_key)
    assert paused.status == 200
    try:
        payload = {"source_url": "https://files.example/a", "file_path": "/in/wanted.bin"}
        request = made(project, "/v1/requests", {"type": "download", "payload": payload})["request_id"]
        office.go(f"queue/{request}")
        expect(office.page.get_by_role("heading", name="wanted.bin")).to_be_visible()
        press(office, "To the front")
        told(office, "front")
        press(office, "Pause")
        expect(office.page.locator(".page-head .badge")).to_have_text("Paused")
        press(office, "Resume")
        expect(office.page.locator(".page-head .badge")).not_to_have_text("Paused")
        press(office, "Cancel")
        expect(office.page.locator(".page-head .badge")).to_have_text("Cancelled")
    finally:
        key = office.deployed.admin_key
        office.deployed.http("POST", "/v1/queue/resume", json={"scope": "no_cookie"}, key=key)


def test_batch_and_its_business_are_deleted(desk: Console, project: DeployedProject) -> None:
    biz = made(project, "/v1/biz", {"name": "Ferries", "process_url": "https://business.example/item"})["biz_id"]
    batch = made(project, "/v1/batches", {"biz_id": biz, "name": "Never run", "total": 3, "rate": 1})["batch_id"]
    desk.go(f"batches/{batch}")
    press(desk, "Delete")
    confirm(desk, "Delete")
    expect(desk.page.get_by_role("heading", name="Batches", exact=True)).to_be_visible()
    assert project.http("GET", f"/v1/batches/{batch}").status == 404
    desk.go("businesses")
    desk.page.locator("tbody tr", has_text="Ferries").get_by_role("button", name="Delete").click()
    confirm(desk, "Delete")
    expect(desk.page.locator("tbody tr", has_text="Ferries")).to_have_count(0)
    assert project.http("GET", "/v1/biz").json()["items"] == []


def test_ended_batch_offers_outcomes_logs_and_redrive(
    desk: Console, project: DeployedProject, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/item").respond_with_json({"result": "abandon", "msg": "not for us"})
    biz = made(project, "/v1/biz", {"name": "Tolls", "process_url": httpserver.url_for("/item")})["biz_id"]
    wanted = {"biz_id": biz, "name": "Three", "total": 3, "rate": 50, "on_item_failure": "skip"}
    batch = made(project, "/v1/batches", wanted)["batch_id"]
    made(project, f"/v1/batches/{batch}/start", {})
    until(lambda: project.http("GET", f"/v1/batches/{batch}").json()["status"], lambda status: status == "finished")
    desk.go("businesses")
    press(desk, "Change")
    desk.page.get_by_role("dialog").locator("input[name=rate]").fill("7")
    confirm(desk, "Save")
    expect(desk.page.locator("tbody tr", has_text="Tolls")).to_contain_text("7/s")
    desk.go(f"batches/{batch}")
    with desk.page.expect_popup() as opened:
        press(desk, "Download outcomes")
    opened.value.close()
    press(desk, "Logs as CSV")
    expect(desk.page.locator(".crumbs")).to_contain_text("Exports")
    desk.go(f"batches/{batch}")
    press(desk, "Redrive abandoned items")
    expect(desk.page.locator("[data-key=details]")).to_contain_text("Redrive of")


def test_callback_shows_its_attempts(desk: Console, project: DeployedProject, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data("ok")
    hook = httpserver.url_for("/hook")
    made(project, "/v1/task", {"name": "Told", "source_data": [{"a": 1}], "callback": hook})
    desk.go("callbacks")
    row = desk.page.locator("tbody tr", has_text=hook)
    expect(row).to_contain_text("Delivered")
    row.get_by_role("button", name="1", exact=True).click()
    expect(desk.page.get_by_role("dialog")).to_contain_text("200")


def test_notes_of_an_export_and_a_job_are_changed(desk: Console, project: DeployedProject) -> None:
    task = made(project, "/v1/task", {"name": "Rows", "source_data": [{"a": 1}]})["task_id"]
    signature = hashlib.sha256(b"noted").hexdigest()
    desk.deployed.store(project, "/noted.bin", b"noted", signature)
    body = {
        "biz_id": 1,
        "app_id": 1,
        "file_path": "/noted.bin",
        "file_name": "noted.bin",
        "file_signature": signature,
        "target_agent_id": "host-1",
        "target_user": "root",
        "target_file_dir": "/srv",
    }
    made(project, "/v1/downloads", body)
    job = project.http("GET", "/v1/jobs").json()["items"][0]["key"]
    for page in (f"exports/{task}", f"distribution/{job}"):
        desk.go(page)
        desk.page.locator("[data-key=note]").first.click()
        desk.page.get_by_role("dialog").locator("textarea[name=note]").fill("ticket 17")
        confirm(desk, "Save")
        expect(desk.page.get_by_text("ticket 17").first).to_be_visible()


def test_admin_freezes_and_thaws_the_stack(office: Console) -> None:
    office.go("operate/system")
    press(office, "Freeze", inside="[data-key=freeze]")
    office.page.get_by_role("dialog").locator("[name=reason]").fill("restore")
    confirm(office, "Freeze")
    expect(office.page.locator("[data-key=freeze]")).to_contain_text("restore")
    press(office, "Thaw", inside="[data-key=freeze]")
    confirm(office, "Thaw")
    expect(office.page.locator("[data-key=freeze]")).not_to_contain_text("restore")


def test_back_off_and_pause_of_a_host_are_ended(
    desk: Console, project: DeployedProject, httpserver: HTTPServer
) -> None:
    busy = {"Retry-After": "600"}
    httpserver.expect_request("/busy.bin").respond_with_data("busy", status=503, headers=busy)
    payload = {"source_url": httpserver.url_for("/busy.bin"), "file_path": "/in/busy.bin"}
    request = made(project, "/v1/requests", {"type": "download", "payload": payload})["request_id"]
    path = f"/v1/requests/{request}"
    until(lambda: project.http("GET", path).json(), lambda found: found.get("last_wait_reason") == "backoff")
    # From now on it answers: another refusal would begin another pause.
    httpserver.clear()
    httpserver.expect_request("/busy.bin").respond_with_data("here")
    desk.go(f"queue/{request}")
    press(desk, "Retry now")
    desk.go("ingest")
    pause = desk.page.locator(".notice.warn", has_text=f":{httpserver.port}")
    pause.get_by_role("button", name="End it").click()
    expect(pause).to_have_count(0)
