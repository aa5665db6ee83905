"""URLs that can be shared: they contain the project that an admin chose."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import Console, console
from tests.support.deployed import Deployed, DeployedProject


@pytest.fixture
def other(deployed: Deployed) -> DeployedProject:
    return deployed.project()


@pytest.fixture
def admin(browser: Browser, deployed: Deployed, project: DeployedProject, other: DeployedProject) -> Iterator[Console]:
    """A console that is signed in after both projects were created."""
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        yield opened


def export_of(project: DeployedProject, name: str) -> str:
    made = project.http("POST", "/v1/task", json={"name": name, "source_data": [{"a": 1}]})
    assert made.status == 202, made.body
    return str(made.json()["task_id"])


def choose(opened: Console, project: DeployedProject) -> None:
    opened.page.locator("#project select").select_option(project.id)
    expect(opened.page).to_have_url(re.compile(f"[?]project={project.id}(#|$)"))


def test_admin_link_opens_the_same_record_in_another_window(
    browser: Browser, deployed: Deployed, admin: Console, project: DeployedProject, other: DeployedProject
) -> None:
    task_id = export_of(project, "Shared figures")
    choose(admin, other)
    choose(admin, project)
    admin.go("exports")
    admin.page.get_by_role("link", name="Shared figures").click()
    expect(admin.page.get_by_role("heading", name="Shared figures", level=1)).to_be_visible()
    shared = admin.page.url
    assert project.id in shared
    assert task_id in shared

    admin.page.reload()
    expect(admin.page.get_by_role("heading", name="Shared figures", level=1)).to_be_visible()
    expect(admin.page.locator("#project select")).to_have_value(project.id)
    with console(browser, deployed) as colleague:
        colleague.page.goto(shared)
        colleague.page.locator("input[name=key]").fill(deployed.admin_key)
        colleague.page.locator("form button[type=submit]").click()
        expect(colleague.page.get_by_role("heading", name="Shared figures", level=1)).to_be_visible()
        expect(colleague.page.locator("#project select")).to_have_value(project.id)


def test_back_and_forward_switch_between_projects(
    admin: Console, project: DeployedProject, other: DeployedProject
) -> None:
    export_of(project, "Of the first")
    export_of(other, "Of the second")
    choose(admin, project)
    admin.go("exports")
    expect(admin.page.locator("tbody tr")).to_contain_text(["Of the first"])
    choose(admin, other)
    expect(admin.page.locator("tbody tr")).to_contain_text(["Of the second"])

    admin.page.go_back()
    expect(admin.page.locator("tbody tr")).to_contain_text(["Of the first"])
    expect(admin.page.locator("#project select")).to_have_value(project.id)
    admin.page.go_forward()
    expect(admin.page.locator("tbody tr")).to_contain_text(["Of the second"])
    expect(admin.page.locator("#project select")).to_have_value(other.id)


def test_switching_projects_shows_the_list_of_the_record(
    admin: Console, project: DeployedProject, other: DeployedProject
) -> None:
    task_id = export_of(project, "Of the first")
    choose(admin, project)
    admin.go(f"exports/{task_id}")
    expect(admin.page.get_by_role("heading", name="Of the first", level=1)).to_be_visible()

    choose(admin, other)

    expect(admin.page.get_by_role("heading", name="Exports", level=1)).to_be_visible()
    expect(admin.page.locator(".state.bad")).to_have_count(0)


def test_signing_out_removes_the_project_from_the_url(admin: Console, project: DeployedProject) -> None:
    choose(admin, project)
    admin.page.get_by_role("button", name="Sign out").click()
    expect(admin.page.locator("input[name=key]")).to_be_visible()
    assert project.id not in admin.page.url


def test_project_key_is_told_that_link_is_of_another_project(
    browser: Browser, deployed: Deployed, project: DeployedProject, other: DeployedProject
) -> None:
    with console(browser, deployed) as opened:
        opened.page.goto(f"{deployed.api_url}/?project={other.id}#/exports")
        opened.page.locator("input[name=key]").fill(project.key)
        opened.page.locator("form button[type=submit]").click()
        expect(opened.page.get_by_role("heading", name="A link to another project")).to_be_visible()
        expect(opened.page.locator(".state")).to_contain_text(other.id)
        opened.page.get_by_role("button", name=re.compile("Stay in")).click()
        expect(opened.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
        assert other.id not in opened.page.url
