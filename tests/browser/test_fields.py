"""Fills in every field of every form, and checks that the console sends every field that the API accepts.

What is sent is looked at and refused on the way, so that no record is made. Fields that no form has are in
tests/support/console_routes.toml with the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.support.console import Console, console
from tests.support.console_routes import fields, matches, table
from tests.support.deployed import Deployed, DeployedProject
from tests.support.exports.fill import sheet_of

WITHOUT = table()["without"]
# Fills every field of a form with a value of its kind; `values` has those of fields that need a special one.
FILL = """([form, values]) => {
  for (const folded of form.querySelectorAll("details")) folded.open = true;
  for (const input of [...form.elements]) {
    if (!input.name || values[input.name] === null) continue;
    const special = values[input.name];
    if (input.type === "checkbox") input.checked = true;
    else if (special !== undefined) input.value = special;
    else if (input.tagName === "SELECT") input.value = input.options[input.options.length - 1].value;
    else if (input.type === "number") input.value = Math.max(1, Number(input.min || 1));
    else if (input.type === "url") input.value = "https://files.example/a";
    else if (input.type === "datetime-local") input.value = "2027-01-02T03:04";
    else input.value = input.value || "a-1";
    for (const name of ["input", "change"]) input.dispatchEvent(new Event(name, { bubbles: true }));
  }
  form.requestSubmit();
}"""
VALUES = {
    "aws_roles": "123456789012/web-hosts groups=web",
    "masks": "mobile = phone",
    "signature": "a" * 64,
    "mode": "0640",
    "labels": "os=debian",
    "waves": "5 60 0\n100",
    "pause_windows": "22:00-06:00",
    "job_data": "{}",
    "share": "export 2",
    "deliver_to": "acme-reports/shop/*",
    "read_from": "dynamodb://orders",
    "targets": "web-1",
    "dirs": "/data/app",
    "users": "app",
    "origins": "https://files.example",
    "origin": "https://files.example",
    "headers": "Cookie: a",
    "header": '{"a": "b"}',
    "footer": '{"a": "b"}',
    "template": '{"a": "A"}',
    "source_data": '[{"a": 1}]',
    "deliver": "acme-reports/shop/orders.csv",
    "email": "ops@example.com",
    "dynamodb": '{"table": "orders"}',
    "source_kind": "",
    "source_url": "",
    "schedule": "",
    "encoding": "gb18030",
    "type": "csv",
}
EXPORT: tuple[dict[str, str], ...] = (
    {},
    {"source_data": "", "source_url": "https://files.example/rows"},
    {"source_kind": "dynamodb"},
    {"type": "excel"},
)
HOURLY = {"schedule": "rate(1 hour)"}
# A batch has one source.
BATCH: tuple[dict[str, str], ...] = (
    {"s3_prefix": "", "s3_inventory": ""},
    {"file": "", "s3_inventory": "", "s3_prefix": "s3://acme-data/in/"},
    {"file": "", "s3_prefix": "", "s3_inventory": "s3://acme-data/inv/manifest.json"},
)


@dataclass(frozen=True)
class Form:
    """A form: its page, the buttons that open it, and its values; it is sent once for each of `fillings`."""

    operation: str
    route: str
    opens: tuple[str, ...] = ()
    inside: str = "#view"
    fillings: tuple[Mapping[str, str | None], ...] = field(default=({},))


def _exports(operation: str, *opens: str, schedule: dict[str, str] | None = None) -> Form:
    return Form(operation, "exports/new", opens, fillings=tuple(each | (schedule or {}) for each in EXPORT))


PROJECT = "operate/projects/{project}"
TABLES = "Add another table"
FORMS = [
    Form("POST /v1/projects", "operate/projects", ("New project",)),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change project",)),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=quotas]"),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=access]"),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=gse]"),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=masked]"),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=stops]"),
    Form("PATCH /v1/projects/{project_id}", PROJECT, ("Change",), "[data-key=aws]"),
    Form("PUT /v1/projects/{project_id}/swarm", PROJECT, ("Change",), "[data-key=swarm]"),
    Form("POST /v1/projects/{project_id}/keys", PROJECT, ("New key",)),
    Form("POST /v1/keys", "operate/keys", ("New key",)),
    Form("POST /v1/files", "files", ("Fetch from an address",), fillings=({"source_url": "https://a.example/a"},)),
    Form("POST /v1/downloads/batch", "distribution/new", fillings=({}, {"targets": ""})),
    Form("PATCH /v1/agents/{agent_id}", "fleet/host-1", ("Groups and labels",)),
    Form("POST /v1/enrolments", "fleet", ("Add hosts",)),
    _exports("POST /v1/task"),
    _exports("POST /v1/task/multiple", TABLES),
    _exports("POST /v1/export-schedules", schedule=HOURLY),
    _exports("POST /v1/export-schedules/multiple", TABLES, schedule=HOURLY),
    Form("POST /v1/biz", "businesses", ("Register a business",)),
    Form("PUT /v1/biz/{biz_id}", "businesses", ("Change",)),
    Form("POST /v1/batches", "batches", ("New batch",), fillings=BATCH),
    Form("POST /v1/batch-schedules", "batches", ("New batch",), fillings=tuple(each | HOURLY for each in BATCH)),
    Form("PATCH /v1/batches/{batch_id}", "batches/{batch}", ("Change",)),
    Form("POST /v1/subscriptions", "ingest/new", fillings=({"source_url": "https://a.example/list"} | HOURLY,)),
    Form(
        "PATCH /v1/subscriptions/{subscription_id}",
        "ingest/{subscription}/change",
        fillings=({"source_url": "https://a.example/list"} | HOURLY,),
    ),
    Form("PUT /v1/credentials/{name}", "operate/credentials", ("Store a credential",)),
    Form("POST /v1/requests", "queue", ("New request",), fillings=({"type": "check"}, {"type": "scan"})),
]


@pytest.fixture(scope="module")
def records(deployed: Deployed) -> tuple[DeployedProject, dict[str, str]]:
    """A project with one record of each kind that forms select or change, by the names in `Form.route`."""
    project = deployed.project()

    def made(path: str, body: dict[str, Any], name: str) -> str:
        answer = project.http("POST", path, json=body)
        assert answer.status in (201, 202), answer.body
        return str(answer.json()[name])

    for path, content in (("/a.bin", b"a"), ("/a.xlsx", sheet_of({"A1": "{customer}", "A2": "{.a}"}))):
        deployed.store(project, path, content, hashlib.sha256(content).hexdigest())
    key = project.agent_key("host-1")
    assert deployed.http("GET", "/v1/agents/host-1/transfers", key=key).status == 200
    biz = made("/v1/biz", {"name": "Ledger", "process_url": "https://business.example/item"}, "biz_id")
    batch = made("/v1/batches", {"biz_id": biz, "name": "Many", "total": 9, "rate": 1}, "batch_id")
    source = {"name": "Mirror", "source_url": "https://files.example/list"}
    return project, {
        "project": project.id,
        "batch": batch,
        "subscription": made("/v1/subscriptions", source, "subscription_id"),
    }


@pytest.fixture(scope="module")
def office(browser: Browser, deployed: Deployed, records: tuple[DeployedProject, dict[str, str]]) -> Iterator[Console]:
    project, _ = records
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.admin_key)
        opened.page.locator("#project select").select_option(project.id)
        yield opened


def sent_by(office: Console, form: Form, filling: Mapping[str, str | None], records: Mapping[str, str]) -> set[str]:
    """Fills in and sends the form. Returns the fields of the request body."""
    page = office.page
    method = form.operation.partition(" ")[0]
    bodies: list[dict[str, Any]] = []

    def refuse(route: Route) -> None:
        path = route.request.url.removeprefix(office.deployed.api_url).partition("?")[0]
        if route.request.method != method or not matches(form.operation, method, path):
            return route.fallback()
        bodies.append(json.loads(route.request.post_data or "{}"))
        return route.fulfill(status=409, content_type="application/problem+json", body='{"detail": "only looked at"}')

    # The dialogs of the previous form disappear with the page; the project stays in the URL.
    office.go("nowhere")
    page.reload()
    page.locator("h1").wait_for()
    page.route("**/v1/**", refuse)
    try:
        office.go(form.route.format_map(records))
        for name in form.opens:
            page.locator(form.inside).get_by_role("button", name=name, exact=True).first.click()
        asked = page.locator("dialog form" if form.opens and TABLES not in form.opens else "#view form").first
        asked.wait_for()
        if form.route == "exports/new":
            # Templates of the library are offered once they were listed.
            page.locator("select[name=fill] option").nth(1).wait_for(state="attached")
        page.evaluate(FILL, [asked.element_handle(), {**VALUES, **filling}])
        page.locator(".form-error", has_text="only looked at").wait_for(timeout=15_000)
    finally:
        page.unroute("**/v1/**", refuse)
    return set().union(*bodies)


@pytest.mark.parametrize("operation", dict.fromkeys(form.operation for form in FORMS))
def test_every_field_of_the_request_can_be_set(
    office: Console, records: tuple[DeployedProject, dict[str, str]], operation: str
) -> None:
    sent: set[str] = set()
    for form in FORMS:
        if form.operation == operation:
            sent = sent.union(*(sent_by(office, form, filling, records[1]) for filling in form.fillings))

    reasons = {name for name in fields(operation) if f"{operation}.{name}" in WITHOUT}
    assert set(fields(operation)) - sent == reasons
