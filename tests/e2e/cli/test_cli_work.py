"""Exports, ingests, batches and callbacks from the command line, against the deployed stack."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.deployed import Deployed, until
from tests.support.http_servers import Handler, free_port, serve
from tests.support.shell import Shell

pytestmark = pytest.mark.e2e

WAIT = ["--watch", "--timeout", "90"]


def test_export_submit_with_watch_downloads_the_file(shell: Shell, project_id: str) -> None:
    rows = [{"编号": number, "name": f"row {number}"} for number in range(250)]
    (shell.home / "rows.json").write_text(json.dumps(rows))

    shell.run("export", "submit", "--name", "rows", "--data", "rows.json", *WAIT, "-o", "rows.csv")

    lines = (shell.home / "rows.csv").read_text("utf-8-sig").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("编号,name", "249,row 249", 251)
    done = shell.json("export", "list", "--status", "completed")["items"]
    assert [item["name"] for item in done] == ["rows"]
    assert shell.json("export", "delete", done[0]["task_id"]) == {"deleted": 1}
    shell.run("export", "get", done[0]["task_id"], expect=4)


def test_ingested_file_is_downloaded_unchanged(shell: Shell, project_id: str) -> None:
    content = random.Random(1).randbytes(300_000)
    with serve(lambda handler: handler.answer(200, content)) as port:
        words = ["--biz-id", "2", "--app-id", "3", "--file-path", "/in/f.bin"]
        shell.run("file", "ingest", f"http://127.0.0.1:{port}/f.bin", *words, *WAIT)

    (record,) = shell.json("file", "list")["items"]
    shell.run("file", "get", record["file_id"], "-o", "f.bin")
    assert (shell.home / "f.bin").read_bytes() == content


@contextmanager
def business(indexes: list[int]) -> Iterator[str]:
    def process(handler: Handler) -> None:
        indexes.append(json.loads(handler.body())["index"])
        handler.answer(200, b'{"result": "ok"}', content_type="application/json")

    with serve(process) as port:
        yield f"http://127.0.0.1:{port}/process"


def test_batch_start_with_watch_runs_to_the_end(shell: Shell, project_id: str) -> None:
    indexes: list[int] = []
    with business(indexes) as url:
        biz = shell.json("biz", "create", "shop", url)
        batch = shell.json("batch", "create", "--biz", biz["biz_id"], "--name", "n", "--total", "40", "--rate", "20")
        _, printed = shell.both("batch", "start", batch["batch_id"], *WAIT)

    assert sorted(indexes) == list(range(40))
    assert "finished" in printed.splitlines()[-1]
    assert shell.json("batch", "show", batch["batch_id"])["progress"]["processed"] == 40
    shell.run("batch", "start", batch["batch_id"], expect=5)


def test_webhook_listen_receives_the_end_of_an_export(shell: Shell, deployed: Deployed, project_id: str) -> None:
    secret = deployed.make_key(project_id, ["write"])["callback_secret"]
    port = free_port()
    listener = shell.start("webhook", "listen", "--port", str(port), "--secret", secret, "--count", "1", "--json")
    (shell.home / "rows.json").write_text('[{"a": 1}]')

    task = shell.json(
        "export", "submit", "--name", "rows", "--data", "rows.json", "--callback", f"http://127.0.0.1:{port}/"
    )
    out, err = listener.communicate(timeout=90)

    (callback,) = [json.loads(line) for line in out.splitlines()]
    assert listener.returncode == 0, err
    assert (callback["verified"], callback["type"]) == (True, "task.completed")
    assert callback["data"]["task_id"] == task["task_id"]
    delivered = until(
        lambda: shell.json("callback", "list", "--task", task["task_id"])["items"],
        lambda items: [item["callback_state"] for item in items] == ["delivered"],
        every=2,
    )
    assert delivered[0]["tries"] == 1


def test_operator_commands_answer(shell: Shell, deployed: Deployed, project_id: str) -> None:
    channels = shell.json("queue", "stats")["channels"]
    assert {"export", "batch", "no_cookie", "requires_cookie"} <= set(channels)
    shell.run("queue", "pause", "export", expect=3)
    admin = deployed.admin_key
    assert "export" in shell.run("queue", "capacity", "export=5", key=admin)
    assert shell.json("compensation", "show")["interval_s"] >= 10
    subscription = shell.json("subscription", "create", "s", "http://127.0.0.1:9/list", "--schedule", "rate(1 day)")
    shell.run("subscription", "delete", subscription["subscription_id"])
    shell.run("stats")
    shell.run("audit")
    assert shell.json("archive")["items"] == []
