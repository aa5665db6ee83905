"""Everything at a glance, in a bounded number of reads."""

from __future__ import annotations

from tests.support.moto_cloud import MotoCloud, Project


def test_an_empty_project_has_channels_and_nothing_else(cloud: MotoCloud, project: Project) -> None:
    seen = cloud.http("GET", "/v1/overview", key=project.key)

    assert seen.status == 200, seen.body
    shown = seen.json()
    assert (shown["jobs"], shown["requests"], shown["stats"], shown["complete"]) == ([], [], [], True)
    assert {"export", "batch", "no_cookie", "requires_cookie"} <= {lane["channel"] for lane in shown["channels"]}
    assert {"interval_s", "queue_size", "next_poll"} <= shown["compensation"].keys()


def test_requests_show_and_only_those_of_the_project(cloud: MotoCloud, project: Project) -> None:
    made = cloud.app.queue.submit(project.id, "check", payload={})

    mine = cloud.http("GET", "/v1/overview", key=project.key).json()
    other = cloud.http("GET", "/v1/overview", key=cloud.project().key).json()

    assert [request["request_id"] for request in mine["requests"]] == [made.request_id]
    assert other["requests"] == []
