"""Uploads, downloads, and a distribution to running agents, without reloading the page."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.support.console import Console, agents
from tests.support.deployed import DeployedProject

# Every share that the bar of an upload has shown.
WATCH_THE_BAR = """() => {
  window.shares = [];
  const bars = () => document.querySelectorAll("li.row [role=progressbar]");
  const look = () => bars().forEach((bar) => shares.push(bar.ariaValueNow));
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
}"""
NASTY = "<img src=x onerror=alert(1)>.txt"


def upload(desk: Console, path: Path) -> None:
    desk.go("files")
    desk.page.locator("input[type=file]").set_input_files(path)
    row = desk.page.locator("tr", has_text=path.name)
    expect(row).to_contain_text("Ready")


def test_upload_and_download_give_the_same_bytes(desk: Console, tmp_path: Path) -> None:
    source = tmp_path / "报表 one.bin"
    source.write_bytes(bytes(range(256)) * 400)

    upload(desk, source)

    with desk.page.expect_download() as started:
        desk.page.locator("tr", has_text=source.name).get_by_role("button", name="Download").click()
    assert started.value.suggested_filename == source.name
    assert Path(started.value.path()).read_bytes() == source.read_bytes()


def test_dropped_files_are_uploaded(desk: Console) -> None:
    desk.go("files")
    desk.page.locator(".drop").wait_for()
    dropped = desk.page.evaluate_handle(
        "() => { const given = new DataTransfer(); given.items.add(new File(['tide'], 'dropped.txt')); return given; }"
    )
    desk.page.dispatch_event(".upload-card", "drop", {"dataTransfer": dropped})
    expect(desk.page.locator("tr", has_text="dropped.txt")).to_contain_text("Ready")


def test_script_in_a_file_name_is_shown_as_text(own_desk: Console, tmp_path: Path) -> None:
    own_desk.page.on("dialog", lambda dialog: own_desk.complaints.append(dialog.message))
    source = tmp_path / NASTY
    source.write_bytes(b"x")

    upload(own_desk, source)

    expect(own_desk.page.get_by_text(NASTY, exact=True).first).to_be_visible()
    assert own_desk.page.locator("#view img").count() == 0
    own_desk.go("distribution/new")
    expect(own_desk.page.locator("select[name=file] option").first).to_contain_text(NASTY)


def test_distribution_to_two_agents_succeeds_without_reload(
    desk: Console, project: DeployedProject, tmp_path: Path
) -> None:
    source = tmp_path / "release.bin"
    source.write_bytes(b"tide" * 100_000)
    upload(desk, source)
    desk.page.evaluate("window.notReloaded = true")

    with agents(project, tmp_path, "host-a", "host-b"):
        desk.page.locator("tr", has_text="release.bin").get_by_role("link", name="Distribute").click()
        desk.page.locator("textarea[name=targets]").fill("host-a\nhost-b")
        desk.page.locator("input[name=target_file_dir]").fill("/srv/app")
        desk.page.get_by_role("button", name="Distribute").click()

        expect(desk.page.locator(".page-head .badge")).to_have_text(re.compile("Pending|Running"))
        expect(desk.page.locator(".page-head .badge")).to_have_text("Success")

    expect(desk.page.locator(".legend li", has_text="Success")).to_contain_text("2")
    targets = desk.page.locator("[data-key=targets]")
    expect(targets.locator("tbody tr")).to_have_count(2)
    targets.get_by_role("button", name="Failed").click()
    expect(desk.page.get_by_text("No targets here")).to_be_visible()
    targets.get_by_role("button", name="All").click()
    desk.page.get_by_role("link", name="Timeline").first.click()
    expect(desk.page.locator(".timeline li").last).to_contain_text("Success")
    assert desk.page.evaluate("window.notReloaded") is True
    for host in ("host-a", "host-b"):
        assert next((tmp_path / host).rglob("release.bin")).read_bytes() == source.read_bytes()


def test_large_file_is_uploaded_in_parts_and_downloaded(own_desk: Console, tmp_path: Path) -> None:
    """An upload over 64 MiB is sent in parts, several in parallel, with a bar; 6 GB only have more of them."""
    source = tmp_path / "large.bin"
    source.write_bytes(b"".join(bytes([number]) * 1024**2 for number in range(81)))
    parts: list[str] = []
    own_desk.page.on("request", lambda asked: parts.append(asked.url) if "partNumber=" in asked.url else None)

    own_desk.go("files")
    own_desk.page.evaluate(WATCH_THE_BAR)
    own_desk.page.locator("input[type=file]").set_input_files(source)
    expect(own_desk.page.locator("tr", has_text=source.name)).to_contain_text("Ready", timeout=90_000)

    shares = [int(share) for share in own_desk.page.evaluate("window.shares")]
    assert len({share for share in shares if 0 < share < 100}) >= 3, shares
    numbers = {found[1] for url in parts if (found := re.search(r"partNumber=(\d+)", url))}
    assert len(numbers) >= 5
    with own_desk.page.expect_download() as started:
        own_desk.page.locator("tr", has_text=source.name).get_by_role("button", name="Download").click()
    assert Path(started.value.path()).read_bytes() == source.read_bytes()
