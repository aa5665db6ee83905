"""What the overview loads does not grow with the records of a project. How long it takes is measured by the bench."""

from __future__ import annotations

from playwright.sync_api import Browser, Response, expect

from tests.support.console import console
from tests.support.console_seed import fill
from tests.support.deployed import Deployed


def test_overview_loads_as_much_with_1200_records_as_with_240(browser: Browser, deployed: Deployed) -> None:
    calls: dict[int, set[str]] = {}
    loaded_bytes: dict[int, int] = {}
    for records in (240, 1200):
        project = deployed.project()
        fill(deployed, project.id, requests=records // 2, jobs=records // 4, files=records // 4)
        responses: list[Response] = []
        with console(browser, deployed) as opened:
            # Playwright sets attributes of its handlers, which a built-in method does not allow.
            opened.page.on("response", lambda response: responses.append(response))  # noqa: B023
            opened.sign_in(project.key)
            expect(opened.page.locator(".skeleton")).to_have_count(0)
            reads = [response for response in responses if response.request.method == "GET"]
            fetched = [response for response in reads if response.request.resource_type == "fetch"]
            calls[records] = {response.url for response in fetched}
            loaded_bytes[records] = sum(len(response.body()) for response in fetched)
    assert f"{deployed.api_url}/v1/overview" in calls[240]
    assert calls[1200] == calls[240]
    # Numbers have more digits; a page of a list has as many records as before.
    assert loaded_bytes[1200] < 1.2 * loaded_bytes[240], loaded_bytes
