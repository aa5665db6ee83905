"""The page of a release: desired and actual, the failing hosts, and the way back in one press."""

from __future__ import annotations

import hashlib
from typing import Any

from playwright.sync_api import expect

from tests.support.console import Console
from tests.support.deployed import Deployed, DeployedProject, until


def put(project: DeployedProject, signature: str, **more: Any) -> dict[str, Any]:
    file = {"file_path": "/conf/app.conf", "signature": signature, "target_file_dir": "/etc/app", "target_user": "root"}
    answer = project.http("PUT", "/v1/releases/app", json={"files": [file], "targets": {"agents": ["web-1"]}, **more})
    assert answer.status == 201, answer.body
    return dict(answer.json())


def report(deployed: Deployed, key: str, revision: int, state: str, **more: Any) -> None:
    body = {"releases": [{"name": "app", "revision": revision, "state": state, **more}]}
    answer = deployed.http("PUT", "/v1/agents/web-1/releases", key=key, json=body)
    assert answer.status == 200, answer.body


def test_release_is_followed_and_taken_back_on_its_page(
    desk: Console, deployed: Deployed, project: DeployedProject
) -> None:
    signatures = []
    for content in (b"one", b"two"):
        signatures.append(hashlib.sha256(content).hexdigest())
        deployed.store(project, "/conf/app.conf", content, signatures[-1])
    key = project.agent_key("web-1")
    assert deployed.http("GET", "/v1/agents/web-1/transfers", key=key).status == 200
    put(project, signatures[0])
    report(deployed, key, 1, "current")
    until(lambda: project.http("GET", "/v1/releases/app").json(), lambda found: found["status"] == "converged")
    put(project, signatures[1], on_failure="stop", activate="manual")

    desk.go("fleet/web-1")
    expect(desk.page.locator("[data-key=files]")).to_contain_text("/etc/app/app.conf")
    desk.page.get_by_role("link", name="app 1", exact=True).click()
    expect(desk.page.locator("[data-key=hosts]")).to_contain_text("web-1")
    desk.go("releases")
    desk.page.get_by_role("link", name="app", exact=True).click()
    page = desk.page
    expect(page.locator("[data-key=activate]").first).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Activate", exact=True).click()
    hook = {"code": 7, "output": "nginx: bad directive"}
    report(deployed, key, 2, "failed", reason="the hook failed with 7", hook=hook)
    expect(page.get_by_text("nginx: bad directive")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=30_000)

    page.get_by_role("button", name="Go back", exact=True).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Go back", exact=True).last.click()
    expect(page.locator(".badge", has_text="Taken back").first).to_be_visible(timeout=30_000)
    expect(page.get_by_text("that of revision 1").first).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("There are no releases")).to_be_visible()
