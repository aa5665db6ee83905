"""The state of `make run` survives a stop, and the stack is deployed again only if it changed."""

from __future__ import annotations

import contextlib
import json
import stat
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import urllib3

from local.cloud import cloud_up
from local.place import Place
from local.progress import silence
from tests.support.deployed import Deployed, until
from tests.support.http_servers import free_port
from tests.support.patience import idle_clock


def test_state_survives_a_stop_and_a_change_of_parameters(tmp_path: Path) -> None:
    place = Place(home=tmp_path, port=free_port())
    content = b"kept across a restart"
    with cloud_up(place, silence) as up:
        assert up.first
        written = json.loads(place.cloud_file.read_text())
        assert written == asdict(up.cloud)
        assert set(written) == {
            "api_url", "ws_url", "console_url", "endpoint_url", "region", "stack_name", "admin_key",
        }  # fmt: skip
        assert stat.S_IMODE(place.cloud_file.stat().st_mode) == 0o600
        cloud = Deployed(up)
        project = cloud.project()
        file = project.http("POST", "/v1/files", json={"biz_id": 2, "app_id": 3, "file_path": "/kept"}).json()
        put = cloud.pool.request("PUT", file["upload_url"], body=content, headers=file["upload_headers"])
        assert put.status == 200, put.data
        assert project.http("POST", f"/v1/files/{file['file_id']}/complete").status == 200
        table = up.emulator.client("dynamodb").describe_time_to_live(TableName=up.outputs["TableName"])
        assert table["TimeToLiveDescription"]["AttributeName"] == "expires_at"
    assert not place.cloud_file.exists()
    assert open_to_others(place.state_dir, place.objects_dir) == []

    lines: list[str] = []
    with cloud_up(place, lines.append) as up:
        assert not up.first
        assert any("nothing to deploy" in line for line in lines)
        cloud = Deployed(up)
        url = cloud.http("GET", f"/v1/files/{file['file_id']}/url", key=project.key).json()["url"]
        assert cloud.pool.request("GET", url).data == content

    with cloud_up(replace(place, port=free_port(), params={"CollectWindowSeconds": "3"}), lines.append) as up:
        assert any("template.yaml deployed" in line for line in lines)
        api = next(f for f in functions(up.emulator.client("lambda")) if "-ApiFunction-" in f["FunctionName"])
        assert api["Environment"]["Variables"]["COLLECT_WINDOW_SECONDS"] == "3"
        assert Deployed(up).http("GET", f"/v1/files/{file['file_id']}", key=project.key).status == 200
        assert takes_messages(up.emulator.client("sqs"), api["Environment"]["Variables"]["WAKEUPS_QUEUE_URL"])


def test_stop_waits_for_no_function_and_keeps_the_state(tmp_path: Path) -> None:
    place = Place(home=tmp_path, port=free_port())
    with cloud_up(place, silence) as up:
        cloud = Deployed(up)
        project = cloud.project()
        waiting = cloud.make_key(project.id, ["agent"], "host-a")["key"]
        poll = threading.Thread(target=poll_until_it_breaks, args=(cloud, waiting), daemon=True)
        poll.start()
        poll.join(2)
        assert poll.is_alive(), "the agent's function still runs"
        stopped = idle_clock()
    assert idle_clock() - stopped < 10, "the poll alone would take 20 s"

    lines: list[str] = []
    with cloud_up(place, lines.append) as up:
        assert any("nothing to deploy" in line for line in lines)
        assert Deployed(up).http("GET", "/v1/me", key=project.key).status == 200


def poll_until_it_breaks(cloud: Deployed, key: str) -> None:
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        cloud.http("GET", "/v1/agents/host-a/transfers", key=key, query={"wait": 20})


def open_to_others(*folders: Path) -> list[Path]:
    """Returns the files that others may read; the emulator's state contains secrets."""
    stored = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert any(path.suffix == ".json" for path in stored)
    return [path for path in stored if path.stat().st_mode & 0o077]


def takes_messages(sqs: Any, url: str) -> bool:
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"channel": "no_cookie", "at": "2026-01-01T00:00:00+00:00"}))
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = until(
        lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"],
        lambda attributes: all(attributes[name] == "0" for name in names),
    )
    return bool(counts)


def functions(client: Any) -> list[Any]:
    pages = client.get_paginator("list_functions").paginate()
    return [function for page in pages for function in page["Functions"]]
