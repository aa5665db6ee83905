"""Recurring exports and batches, direct sources, and the buckets and tables that a project may use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.schedules import BATCHES, EXPORTS, fire
from tests.support.batches.receiver import receiver
from tests.support.console import Console, console, fits
from tests.support.deployed import Deployed, DeployedProject, until

NIGHTLY = "cron(0 2 * * ? *)"
BUCKET = "tidegate-e2e-source-console"
# Cells of tables whose content is wider than its card.
TOO_WIDE = """() => [...document.querySelectorAll(".table-wrap td > *")].filter((cell) =>
  cell.getBoundingClientRect().right > cell.closest("tr").getBoundingClientRect().right)
  .map((cell) => cell.outerHTML)"""


@pytest.fixture
def reader(browser: Browser, deployed: Deployed, project: DeployedProject) -> Iterator[Console]:
    """A console that is signed in with a key of scope read."""
    with console(browser, deployed) as opened:
        opened.sign_in(deployed.make_key(project.id, ["read"])["key"])
        yield opened


def head(desk: Console) -> Locator:
    return desk.page.locator(".page-head")


def press(place: Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def delete(desk: Console, place: Locator) -> None:
    press(place, "Delete")
    press(desk.page.get_by_role("dialog"), "Delete")


def last_of(desk: Console) -> str:
    return desk.page.url.rpartition("/")[2]


def sent(desk: Console, path: str, name: str) -> Any:
    """Clicks the button. Returns the body of the request that it sent."""
    with desk.page.expect_request(lambda call: call.method == "POST" and call.url.endswith(path)) as made:
        desk.page.get_by_role("button", name=name, exact=True).click()
    return json.loads(made.value.post_data or "")


def test_recurring_export_links_its_runs_to_their_exports(desk: Console, project: DeployedProject) -> None:
    page = desk.page
    desk.go("export-schedules")
    expect(page.locator(".state")).to_contain_text("describe the export, then choose when")
    desk.go("exports/new")
    page.locator("select[name=schedule]").select_option(NIGHTLY)
    press(page.locator("form"), "Save schedule")
    expect(page.locator("[data-key=runs]")).to_contain_text("It has not run yet")
    expect(head(desk)).to_contain_text("daily, 02:00 UTC")
    expect(page.locator("[data-key=timeline] .badge")).to_have_text("Created")
    schedule_id = last_of(desk)

    fire(desk.deployed, schedule_id, EXPORTS)
    run = page.locator("[data-key=runs] tbody tr")
    expect(run.locator(".badge")).to_have_text("Completed")
    run.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Staff by team", level=1)).to_be_visible()
    page.get_by_role("link", name="Its schedule").click()
    expect(page.locator("[data-key=runs] tbody tr")).to_have_count(1)

    press(head(desk), "Pause")
    expect(head(desk).locator(".badge")).to_have_text("Paused")
    assert project.http("GET", f"/v1/export-schedules/{schedule_id}").json()["status"] == "paused"
    press(head(desk), "Change")
    box = page.get_by_role("dialog")
    box.locator("input[name=name]").fill("Staff every hour")
    box.locator("select[name=schedule]").select_option("rate(1 hour)")
    box.locator("textarea[name=fields]").fill('{"step": 7}')
    press(box, "Save")
    expect(box).to_contain_text("greater than or equal to 100")
    box.locator("textarea[name=fields]").fill('{"file_name": "staff-{date}"}')
    press(box, "Save")
    expect(page.get_by_role("heading", name="Staff every hour", level=1)).to_be_visible()
    expect(head(desk)).to_contain_text("every hour")
    assert project.http("GET", f"/v1/export-schedules/{schedule_id}").json()["status"] == "paused"
    press(head(desk), "Resume")
    expect(head(desk).locator(".badge")).to_have_text("Active")
    page.locator(".crumbs").get_by_role("link", name="Schedules").click()
    row = page.locator("tbody tr", has_text="Staff every hour")
    expect(row).to_contain_text("Completed")
    delete(desk, row)
    expect(page.locator(".state")).to_contain_text("No schedules yet")


def schedules_of(project: DeployedProject) -> tuple[str, str]:
    """A recurring export named Orders and a recurring batch named Points."""
    order = {"name": "Orders", "source_data": [{"a": 1}], "schedule": NIGHTLY}
    export = project.http("POST", "/v1/export-schedules", json=order)
    biz = project.http("POST", "/v1/biz", json={"name": "Ledger", "process_url": "https://ledger.example/item"})
    batch = {"biz_id": biz.json()["biz_id"], "name": "Points", "total": 1, "rate": 1}
    points = project.http("POST", "/v1/batch-schedules", json={"schedule": NIGHTLY, "batch": batch})
    assert (export.status, points.status) == (201, 201), (export.body, points.body)
    return export.json()["schedule_id"], points.json()["schedule_id"]


@pytest.mark.parametrize("width", [390, 1440])
def test_schedules_fit_the_screen_and_axe_finds_nothing_serious(
    browser: Browser, deployed: Deployed, project: DeployedProject, width: int
) -> None:
    export, batch = schedules_of(project)
    with console(browser, deployed, width=width, language="zh-CN") as opened:
        opened.sign_in(project.key)
        fits(opened, [f"export-schedules/{export}", f"batch-schedules/{batch}"], width)
        for area in ("export-schedules", "batch-schedules"):
            fits(opened, [area], width)
            assert opened.page.evaluate(TOO_WIDE) == []


def test_next_run_is_in_the_time_zone_of_the_user(own_desk: Console, project: DeployedProject) -> None:
    schedules_of(project)
    zone = {"timezoneId": "Asia/Tokyo"}
    own_desk.page.context.new_cdp_session(own_desk.page).send("Emulation.setTimezoneOverride", zone)
    own_desk.go("export-schedules")
    told = own_desk.page.locator("tbody tr", has_text="Orders").locator("td[data-label='Next run'] time")
    expect(told).to_contain_text("11:00")
    expect(told).to_have_attribute("title", "Asia/Tokyo")


def test_two_tables_recur_by_a_custom_expression(desk: Console, project: DeployedProject) -> None:
    page = desk.page
    desk.go("export-schedules")
    page.get_by_role("link", name="New schedule").first.click()
    page.get_by_role("button", name="Add another table").click()
    page.locator("textarea[name=source_data]").fill('[{"city": "Oslo"}]')
    page.locator("select[name=schedule]").select_option("other")
    press(page.locator("form"), "Save schedule")
    expect(page.locator("[data-field=schedule_other] .field-error")).to_contain_text("cron(")
    page.locator("input[name=schedule_other]").fill("rate(2 fortnights)")
    press(page.locator("form"), "Save schedule")
    expect(page.locator("[data-field=schedule] .field-error")).to_contain_text("rate(5 minutes)")
    page.locator("input[name=schedule_other]").fill("rate(2 days)")
    body = sent(desk, "/v1/export-schedules/multiple", "Save schedule")

    assert [bool(rows) for rows in body["source_data"]] == [True, True]
    expect(head(desk)).to_contain_text("rate(2 days)")
    delete(desk, head(desk))
    expect(page.locator(".state")).to_contain_text("No schedules yet")
    assert project.http("GET", "/v1/export-schedules").json()["items"] == []


def test_each_of_two_tables_has_its_own_source(desk: Console) -> None:
    page = desk.page
    desk.go("exports/new")
    page.get_by_role("button", name="Add another table").click()
    page.get_by_text("Direct source, mail and rate").click()
    page.locator("select[name=source_kind]").select_option("s3")
    page.locator("input[name=bucket]").fill("forbidden")
    page.locator("input[name=key]").fill("a.csv")
    page.get_by_role("button", name="Table 1").click()
    expect(page.locator("input[name=bucket]")).to_be_hidden()
    page.get_by_role("button", name="Table 2").click()
    expect(page.locator("input[name=bucket]")).to_have_value("forbidden")
    page.get_by_role("button", name="Table 1").click()
    body = sent(desk, "/v1/task/multiple", "Export")

    assert body["source"] == [None, {"s3": {"bucket": "forbidden", "key": "a.csv"}}]
    assert [bool(rows) for rows in body["source_data"]] == [True, False]
    # The field is hidden while the other table is shown.
    expect(page.locator(".form-error", has_text="the bucket forbidden may not be read")).to_be_visible()


def test_recurring_batch_links_to_its_last_batch(desk: Console, project: DeployedProject) -> None:
    page = desk.page
    desk.go("batch-schedules")
    expect(page.locator(".state")).to_contain_text("Register a business first")
    with receiver() as business:
        made = project.http("POST", "/v1/biz", json={"name": "Ledger", "process_url": business.url})
        assert made.status == 201, made.body
        desk.go("batches")
        page.get_by_role("navigation", name="Batches").get_by_role("link", name="Schedules").click()
        page.get_by_role("button", name="New schedule").first.click()
        box = page.get_by_role("dialog")
        box.locator("input[name=name]").fill("Nightly points")
        box.locator("input[name=total]").fill("5")
        press(box, "Create")
        expect(page.locator("[data-key=runs]")).to_contain_text("It has not run yet")

        fire(desk.deployed, last_of(desk), BATCHES)
        last = page.locator("[data-key=runs] tbody tr")
        expect(last.locator(".badge")).to_have_text("Finished")
        last.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Nightly points", level=1)).to_be_visible()

        desk.go("batch-schedules")
        row = page.locator("tbody tr", has_text="Nightly points")
        expect(row).to_contain_text("Finished")
        press(row, "Pause")
        expect(row.locator(".badge").first).to_have_text("Paused")
        press(row, "Resume")
        expect(row.locator(".badge").first).to_have_text("Active")
        press(row, "Change")
        page.get_by_role("dialog").locator("select[name=schedule]").select_option("rate(1 hour)")
        page.get_by_role("dialog").locator("input[name=rate]").fill("20")
        press(page.get_by_role("dialog"), "Save")
        expect(row).to_contain_text("every hour")
        (changed,) = project.http("GET", "/v1/batch-schedules").json()["items"]
        batch = project.http("GET", f"/v1/batch-schedules/{changed['schedule_id']}").json()["batch"]
        assert (changed["revision"], batch["rate"], batch["total"], batch["retries"]) == (4, 20, 5, 5)
        row.get_by_role("link", name="Nightly points").click()
        delete(desk, head(desk))
        expect(page.locator(".state")).to_contain_text("No schedules yet")


def test_new_batch_dialog_creates_a_recurring_batch(desk: Console, project: DeployedProject) -> None:
    wanted = {"name": "Ledger", "process_url": "https://ledger.example/item"}
    assert project.http("POST", "/v1/biz", json=wanted).status == 201
    desk.go("batches")
    desk.page.get_by_role("button", name="New batch").first.click()
    box = desk.page.get_by_role("dialog")
    box.locator("input[name=name]").fill("Nightly")
    box.locator("input[name=total]").fill("5")
    expect(box.locator("select[name=timezone]")).to_be_hidden()
    box.locator("select[name=schedule]").select_option(NIGHTLY)
    box.locator("select[name=timezone]").select_option("Asia/Shanghai")
    press(box, "Create")
    expect(head(desk)).to_contain_text("daily, 02:00 Asia/Shanghai")
    press(head(desk), "Change")
    box.locator("select[name=timezone]").select_option("Europe/Berlin")
    press(box, "Save")
    expect(head(desk)).to_contain_text("daily, 02:00 Europe/Berlin")
    assert project.http("GET", "/v1/batches").json()["items"] == []


def test_read_key_sees_schedules_without_buttons(reader: Console, project: DeployedProject) -> None:
    page = reader.page
    reader.go("export-schedules")
    expect(page.locator(".state")).to_contain_text("a key that may write")
    export, points = schedules_of(project)
    for area, name, schedule_id in (("export", "Orders", export), ("batch", "Points", points)):
        reader.go(f"{area}-schedules")
        expect(page.locator("tbody tr", has_text=name)).to_contain_text("daily, 02:00 UTC")
        expect(page.locator("#view .button")).to_have_count(0)
        reader.go(f"{area}-schedules/{schedule_id}")
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(page.locator("#view .button")).to_have_count(0)
    reader.go("export-schedules/new")
    expect(page.get_by_role("heading", name="Not with this key")).to_be_visible()


def test_file_in_an_allowed_bucket_becomes_an_export(
    browser: Browser, deployed: Deployed, project: DeployedProject
) -> None:
    s3 = deployed.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="orders/day.csv", Body=b"order;amount\nA-1;5\nA-2;7\n")
    with console(browser, deployed) as office:
        page = office.page
        office.sign_in(deployed.admin_key)
        page.locator("#project select").select_option(project.id)
        office.go(f"operate/projects/{project.id}")
        access = page.locator("[data-key=access]")
        expect(access).to_contain_text("nowhere")
        press(access, "Change")
        box = page.get_by_role("dialog")
        box.locator("textarea[name=deliver_to]").fill("acme-reports/shop/*\n")
        box.locator("textarea[name=read_from]").fill(f"s3://{BUCKET}/orders/*\nall of it")
        press(box, "Save")
        expect(box.locator("[data-field=read_from] .field-error")).to_contain_text("“all of it”")
        box.locator("textarea[name=read_from]").fill(f"s3://{BUCKET}/orders/*")
        press(box, "Save")
        expect(access).to_contain_text(f"s3://{BUCKET}/orders/*")
        expect(access).to_contain_text("acme-reports/shop/*")
        gse = page.locator("[data-key=gse]")
        press(gse, "Change")
        box.locator("textarea[name=targets]").fill("web-*\nweb-1/*")
        box.locator("textarea[name=dirs]").fill("data/app")
        box.locator("textarea[name=users]").fill("app")
        press(box, "Save")
        expect(box.locator("[data-field=dirs] .field-error")).to_contain_text("“data/app”")
        box.locator("textarea[name=dirs]").fill("/data/app")
        press(box, "Save")
        expect(gse).to_contain_text("web-1/*")
        expect(gse).to_contain_text("/data/app")

        office.go("exports/new")
        page.locator("input[name=name]").fill("From a bucket")
        page.locator("select[name=type]").select_option("csv")
        page.get_by_text("Direct source, mail and rate").click()
        page.locator("select[name=source_kind]").select_option("s3")
        expect(page.locator("textarea[name=athena]")).to_be_hidden()
        page.locator("input[name=bucket]").fill(BUCKET)
        press(page.locator("form"), "Export")
        expect(page.locator("[data-field=key] .field-error")).to_contain_text("needed")
        page.locator("input[name=key]").fill("orders/day.csv")
        page.locator("select[name=s3_delimiter]").select_option(";")
        page.locator("input[name=source_rate]").fill("9")
        page.locator("textarea[name=email]").fill("ann@example.com")
        page.get_by_text("Direct source, mail and rate").click()
        expect(page.locator("textarea[name=email]")).to_be_hidden()
        body = sent(office, "/v1/task", "Export")
        assert (body["source_rate"], body["email"]) == (9, ["ann@example.com"])
        assert body["source"] == {"s3": {"bucket": BUCKET, "key": "orders/day.csv", "delimiter": ";"}}
        assert "source_data" not in body
        # This deployment has no sender of e-mail. The collapsed section with the error opens.
        expect(page.locator("[data-field=email] .field-error", has_text="EmailSender")).to_be_visible()
        page.locator("textarea[name=email]").fill("")
        press(page.locator("form"), "Export")

        expect(page.locator(".page-head .badge")).to_have_text("Completed")
        with page.expect_download() as started:
            page.get_by_role("button", name="Download").click()
        assert Path(started.value.path()).read_bytes().splitlines()[1:] == [b"A-1,5", b"A-2,7"]


@pytest.mark.parametrize(
    ("kind", "query", "said"),
    [
        (
            "dynamodb",
            {"table": "tidegate-e2e-source-x", "key_condition": "s = :s", "values": {":s": "north"}},
            "this project may not read dynamodb://tidegate-e2e-source-x",
        ),
        ("athena", {"workgroup": "reports", "sql": "SELECT 1"}, "SourceWorkgroup"),
    ],
)
def test_direct_query_shows_errors_of_json_and_of_the_api(
    desk: Console, kind: str, query: dict[str, Any], said: str
) -> None:
    page = desk.page
    desk.go("exports/new")
    page.get_by_text("Direct source, mail and rate").click()
    page.locator("select[name=source_kind]").select_option(kind)
    page.locator(f"textarea[name={kind}]").fill("{")
    press(page.locator("form"), "Export")
    expect(page.locator(f"[data-field={kind}] .field-error")).to_contain_text("Not JSON")
    page.locator(f"textarea[name={kind}]").fill(json.dumps(query))
    assert sent(desk, "/v1/task", "Export")["source"] == {kind: query}
    # The project may not read anything yet.
    expect(page.locator(f"[data-field={kind}] .field-error")).to_contain_text(said)


def test_file_is_downloaded_with_its_mirrors(desk: Console, project: DeployedProject) -> None:
    page = desk.page
    desk.go("files")
    page.get_by_role("button", name="Fetch from an address").click()
    box = page.get_by_role("dialog")
    box.locator("input[name=source_url]").fill("https://a.example/x")
    box.locator("input[name=file_path]").fill("/x")
    box.get_by_text("More", exact=True).click()
    box.locator("textarea[name=mirrors]").fill("https://b.example/x\nhttps://c.example/x")
    box.locator("input[name=host_downloads]").fill("2")
    with page.expect_request(lambda call: call.method == "POST" and call.url.endswith("/v1/files")) as made:
        press(box, "Fetch from an address")
    body = json.loads(made.value.post_data or "")
    assert body["mirrors"] == ["https://b.example/x", "https://c.example/x"]
    assert body["politeness"] == {"host_downloads": 2}
    expect(page.locator(".crumbs")).to_contain_text("Queue")
    queued = until(lambda: project.http("GET", "/v1/queue").json()["items"], bool)
    project.http("POST", f"/v1/requests/{queued[0]['request_id']}/cancel")
