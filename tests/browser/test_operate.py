"""Operate: projects, keys, quotas, credentials, the audit trail, the archive, the deployment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject


@pytest.fixture
def office(browser: Browser, deployed: Deployed) -> Iterator[Console]:
    """A console that is signed in with the admin key."""
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        yield opened


def test_project_key_is_created_rotated_and_revoked(office: Console, deployed: Deployed) -> None:
    page = office.page
    office.go("operate/projects")
    page.get_by_role("button", name="New project").first.click()
    page.get_by_role("dialog").locator("input[name=name]").fill("Lighthouse")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="Lighthouse", level=1)).to_be_visible()

    page.get_by_role("button", name="New key").first.click()
    box = page.get_by_role("dialog")
    box.locator("input[name=name]").fill("colleague")
    box.locator("select[name=scopes]").select_option("read")
    box.locator("select[name=expires_in]").select_option("86400")
    box.get_by_role("button", name="Create").click()
    shown = page.get_by_role("dialog", name="The new key")
    key = shown.locator(".copy").first.inner_text().strip()
    shown.get_by_role("button", name="Close").last.click()
    assert deployed.http("GET", "/v1/me", key=key).json()["scopes"] == ["read"]

    row = page.locator("tbody tr", has_text="colleague").first
    expect(row).to_contain_text("Active")
    row.get_by_role("button", name="Rotate").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    page.get_by_role("dialog", name="The new key").get_by_role("button", name="Close").last.click()
    expect(page.locator("tbody tr", has_text="colleague")).to_have_count(2)
    page.locator("tbody tr", has_text="colleague").first.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.locator("tbody tr", has_text="Revoked")).to_have_count(1)


def test_quota_is_set_and_shown_as_a_bar(office: Console, deployed: Deployed) -> None:
    project = deployed.project()
    office.go(f"operate/projects/{project.id}")
    quotas = office.page.locator("[data-key=quotas]")
    quotas.get_by_role("button", name="Change").click()
    box = office.page.get_by_role("dialog")
    box.locator("input[name=queued]").fill("40")
    box.get_by_role("button", name="Save").click()

    expect(quotas.locator("li", has_text="Requests in the queue")).to_contain_text("0 / 40")
    expect(quotas.locator("li", has_text="Requests in the queue").get_by_role("progressbar")).to_be_visible()
    detail = deployed.http("GET", f"/v1/projects/{project.id}", key=deployed.admin_key).json()
    assert detail["quotas"]["queued"] == 40


def test_deployment_shows_parameters_and_alarms(office: Console) -> None:
    office.go("operate/system")
    quiet = office.page.locator("[data-key=quiet-alarms]")
    quiet.locator("summary").click()
    expect(quiet.locator("tbody tr", has_text="ApiErrors")).to_be_visible()
    expect(office.page.locator("[data-key=parameters]")).to_contain_text("CollectWindowSeconds")
    office.page.get_by_role("button", name="Poll now").click()
    expect(office.page.locator(".toast")).to_contain_text("The poll has started")
    # The click refreshed the page: the opened section stays open.
    expect(quiet.locator("tbody tr", has_text="ApiErrors")).to_be_visible()


def test_stored_credential_is_listed_by_origin_and_found_in_the_audit(desk: Console, project: DeployedProject) -> None:
    page = desk.page
    desk.go("operate/credentials")
    page.get_by_role("button", name="Store a credential").click()
    box = page.get_by_role("dialog")
    box.locator("input[name=name]").fill("mirror")
    box.locator("textarea[name=origins]").fill("https://files.example")
    box.locator("textarea[name=headers]").fill("X-Token: hidden-from-all")
    box.get_by_role("button", name="Save").click()
    row = page.locator("tbody tr", has_text="mirror")
    expect(row).to_contain_text("https://files.example")
    expect(row).to_contain_text("X-Token")
    assert "hidden-from-all" not in page.content()

    desk.go("operate/audit?action=credential.put")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("credential.put")
    desk.go("operate/archive")
    expect(page.get_by_text("Nothing was archived")).to_be_visible()


def test_read_key_sees_no_buttons_for_changes(browser: Browser, deployed: Deployed) -> None:
    project = deployed.project()
    assert project.http("POST", "/v1/task", json={"name": "Rows", "source_data": [{"a": 1}]}).status == 202
    source = {"name": "Mirror", "source_url": "https://files.example/list"}
    assert project.http("POST", "/v1/subscriptions", json=source).status == 201
    assert project.http("POST", "/v1/biz", json={"name": "B", "process_url": "https://b.example"}).status == 201
    with console(browser, deployed) as opened:
        opened.sign_in(str(deployed.make_key(project.id, ["read"])["key"]))
        acts = "New|Change|Delete|Cancel|Pause|Retry|Store|Distribute|Register|Scan now|Add hosts|Upload|Poll now"
        for area in (
            "overview",
            "distribution",
            "fleet",
            "files",
            "ingest",
            "exports",
            "batches",
            "businesses",
            "queue",
        ):
            opened.go(area)
            expect(opened.page.locator("h1")).to_be_visible()
            expect(opened.page.locator(".skeleton")).to_have_count(0)
            offered = opened.page.locator("#view button:not(.chip), #view a.button").all_inner_texts()
            assert not [text for text in offered if any(text.startswith(act) for act in acts.split("|"))], (
                area,
                offered,
            )
        for page in ("exports/new", "operate/projects"):
            opened.go(page)
            expect(opened.page.get_by_role("heading", name="Not with this key")).to_be_visible()
