"""The fleet, and a Job of many targets: map, window, cancel and redrive."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.support.console import Console, agents, console
from tests.support.deployed import Deployed, DeployedProject

CONTENT = b"tide" * 1000
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()


def submit(project: DeployedProject, targets: list[str]) -> str:
    body = {
        "biz_id": 2,
        "app_id": 3,
        "file_path": "/fleet/app.bin",
        "file_name": "app.bin",
        "file_signature": SIGNATURE,
        "target_user": "root",
        "target_file_dir": "/srv",
        "targets": [{"agent_id": name} for name in targets],
    }
    made = project.http("POST", "/v1/downloads/batch", json=body)
    assert made.status == 202, made.body
    return str(made.json()["job_id"])


def test_hosts_show_state_and_get_groups(desk: Console, project: DeployedProject, tmp_path: Path) -> None:
    page = desk.page
    with agents(project, tmp_path, "edge-1"):
        desk.go("fleet")
        row = page.locator("tbody tr", has_text="edge-1")
        expect(row).to_contain_text("Online")
        row.get_by_role("link", name="edge-1").click()
        page.get_by_role("button", name="Groups and labels").click()
        box = page.get_by_role("dialog")
        box.locator("input[name=groups]").fill("north, canary")
        box.locator("textarea[name=labels]").fill("rack=7")
        box.get_by_role("button", name="Save").click()
        expect(page.locator("[data-key=details]")).to_contain_text("rack=7")
        desk.go("fleet?group=canary")
        expect(page.locator("tbody tr", has_text="edge-1")).to_be_visible()


def test_host_enrols_with_a_token_of_the_admin(browser: Browser, deployed: Deployed) -> None:
    project = deployed.project()
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        opened.page.locator("#project select").select_option(project.id)
        opened.go("fleet")
        opened.page.get_by_role("button", name="Add hosts").first.click()
        opened.page.get_by_role("dialog").get_by_role("button", name="Make token").click()
        token = opened.page.get_by_role("dialog", name="Token").locator(".copy").first.inner_text().strip()
    enrolled = deployed.http("POST", "/v1/agents/enrol", json={"token": token, "agent_id": "edge-9"})
    assert enrolled.status == 201, enrolled.body
    assert enrolled.json()["project_id"] == project.id


def test_large_job_is_searched_cancelled_and_redriven(
    desk: Console, project: DeployedProject, deployed: Deployed
) -> None:
    page = desk.page
    deployed.store(project, "/fleet/app.bin", CONTENT, SIGNATURE)
    job_id = submit(project, [f"edge-{number:04d}" for number in range(1000)])
    desk.go(f"distribution/{job_id.replace('/', '%2F')}")
    expect(page.get_by_text(re.compile("The window is open for another|The window has closed"))).to_be_visible()

    expect(page.locator(".page-head .badge")).to_have_text("Running")
    drawn = page.locator("canvas.target-map")
    expect(drawn).to_have_attribute("aria-label", re.compile("Waiting 1,000"))
    page.locator("[data-key=map] input[type=search]").fill("edge-0421")
    expect(page.locator("[data-key=map] .rows li")).to_have_count(1)
    expect(page.locator("[data-key=map] .rows li")).to_contain_text("edge-0421")

    page.get_by_role("button", name="Cancel Job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel Job").click()
    expect(page.locator(".page-head .badge")).to_have_text("Cancelled")
    page.get_by_role("button", name="Redrive 1,000").click()
    expect(page.locator("[data-key=details]")).to_contain_text("Redrive of")


def test_host_list_shows_last_jobs(desk: Console, project: DeployedProject, deployed: Deployed, tmp_path: Path) -> None:
    page = desk.page
    deployed.store(project, "/fleet/app.bin", CONTENT, SIGNATURE)
    with agents(project, tmp_path, "edge-1", "edge-2"):
        submit(project, ["edge-1"])
        desk.go("fleet")
        row = page.locator("tbody tr", has_text="edge-1")
        expect(row.locator("[data-label='Last Job']")).to_contain_text(re.compile("app.bin.*Success"))
        expect(page.locator("tbody tr", has_text="edge-2").locator("[data-label='Last Job']")).to_have_text("–")
        row.get_by_role("link", name="app.bin").click()
        expect(page.get_by_role("heading", name="app.bin", level=1)).to_be_visible()
