"""`tidegate import`: dumps of the former systems become records, once, whatever is repeated."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.exports.running import MACHINE, read_sheet
from tests.support.http_servers import Handler, serve
from tests.support.ingest.sources import Hosted, file_source
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import ROOT
from tidegate_client import Client
from tidegate_client.cli import main
from tidegate_client.cli.commands.moving_in import PhpReader, export_of, read_rows

DUMPS = ROOT / "tests/support/moving_in"
TASKS = DUMPS / "php_tasks.tsv"


@pytest.fixture
def client(cloud: MotoCloud, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the API over HTTP, with the same login for the command."""

    def answer(handler: Handler) -> None:
        body = handler.body().decode() or None
        key = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        idempotency = handler.headers.get("Idempotency-Key")
        headers = {"idempotency-key": idempotency} if idempotency else {}
        reply = cloud.http(handler.command, handler.path, key=key, body=body, headers=headers)
        handler.answer(reply.status, reply.body)

    with serve(answer) as port:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("TIDEGATE_API_URL", url)
        monkeypatch.setenv("TIDEGATE_KEY", project.key)
        yield Client(url, project.key)


def carried(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Runs the import; returns its lines by the old id."""
    capsys.readouterr()
    assert main(["import", *command, "--json"]) == code
    return {line["old"]: line for line in json.loads(capsys.readouterr().out)["items"]}


def task(old: str) -> Any:
    return next(row for row in read_rows(TASKS, ("id",)) if row["id"] == old)


def test_php_task_keeps_source_heads_and_texts() -> None:
    multiple, body = export_of(task("t-todo"))

    assert not multiple
    assert body == {
        "name": "订单 orders",
        "type": "excel",
        "file_name": "订单.xlsx",
        "operator_id": "op-7",
        "callback": "https://shop.example/done",
        "merchant_type": 2,
        "merchant_id": 12,
        "step": 500,
        "max_exec_time": 3600,
        "source_rate": 2,
        "source_url": "https://shop.example/orders?day=1",
        "title": "订单表",
        "summary": "2026",
        "header": {"油站": "钓鱼岛"},
        "footer": {"签名": "        "},
        "header_align": "left",
        "default_width": 60,
        "template": [
            {"title": "订单", "name": "order"},
            {
                "title": "金额",
                "children": [
                    {
                        "title": "净额",
                        "name": "net",
                        "style": {"width": 90, "align": "right", "bg_color": "yellow", "bold": True, "type": "number"},
                    },
                    {"title": "税额", "name": "tax"},
                ],
            },
        ],
    }


def test_php_task_keeps_row_heads_and_escaped_characters() -> None:
    _, body = export_of(task("t-rows"))

    heads = [{"title": "前端", "name": "front_end", "row_count": 2}, {"title": "后端", "name": "back_end"}]
    assert body["template"]["row"] == [{"title": "云研发", "children": heads}]
    assert body["source_data"]["back_end"] == [{"name": "tab\tand\nline \\ end"}]


def test_unfinished_php_tasks_become_exports_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    planned = carried(capsys, "php-tasks", str(TASKS), "--dry-run")
    assert {old for old, line in planned.items() if line["outcome"] == "to make"} == {
        "t-todo",
        "t-rows",
        "t-tabs",
        "t-old",
    }
    assert client.exports.list()["items"] == []

    first = carried(capsys, "php-tasks", str(TASKS))
    again = carried(capsys, "php-tasks", str(TASKS))

    made = {old: line["new"] for old, line in first.items() if line["outcome"] == "made"}
    assert set(made) == {"t-todo", "t-rows", "t-tabs", "t-old"}
    assert {old: line["new"] for old, line in again.items() if line["outcome"] == "there"} == made
    assert {export["task_id"]: export["note"] for export in client.exports.list()["items"]} == {
        new: f"php-task:{old}" for old, new in made.items()
    }
    reasons = {old: line["reason"] for old, line in first.items() if line["outcome"] == "skipped"}
    assert reasons["t-err"] == "failed there: 源数据错误"
    assert reasons["t-gone"] == "deleted there"
    assert reasons["t-sync"] == "was downloaded at once"
    assert reasons["t-done"] == "finished: give its file with --files"
    assert reasons["t-broken"].startswith("cannot be read: PHP data")


def test_export_of_a_php_task_has_its_row_heads(
    cloud: MotoCloud, project: Project, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    made = carried(capsys, "php-tasks", str(TASKS))["t-rows"]["new"]
    cloud.deliver("AdmissionQueue")

    state = {"project_id": project.id, "request_id": made, "attempt": 1, "next": "pull"}
    while state["next"] in MACHINE:
        state = cloud.invoke(MACHINE[str(state["next"])], state)

    result = cloud.app.queue.get(project.id, made).result
    assert result
    stored = cloud.client("s3").get_object(Bucket=cloud.app.settings.files_bucket, Key=result["key"])
    cells = {cell for row in read_sheet(stored["Body"].read()) for cell in row}
    assert {"云研发", "前端", "后端", "姓名", "张三"} <= cells


def test_finished_file_of_a_php_task_goes_to_the_library_once(
    cloud: MotoCloud,
    client: Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "t-done.csv").write_text("a\n1\n")

    def upload(_pool: object, url: str, source: Path, **_: object) -> None:
        key = unquote(urlsplit(url).path.removeprefix(f"/{cloud.app.settings.files_bucket}/").lstrip("/"))
        cloud.client("s3").put_object(Bucket=cloud.app.settings.files_bucket, Key=key, Body=source.read_bytes())

    # Presigned URLs of moto lead nowhere.
    monkeypatch.setattr("tidegate_client.resources.files.upload", upload)

    command = ("php-tasks", str(TASKS), "--files", str(tmp_path))
    first = carried(capsys, *command)["t-done"]
    again = carried(capsys, *command)["t-done"]

    assert (first["outcome"], again["outcome"], again["new"]) == ("made", "there", first["new"])
    record = client.files.get(first["new"])
    assert (record.file_path, record.file_name) == ("/php-tasks/t-done/March.csv", "March.csv")


def test_businesses_and_stopped_jobs_become_batches_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("batch-jobs", str(DUMPS / "batch_job_biz.csv"), str(DUMPS / "batch_job_list.jsonl"))
    planned = carried(capsys, *command, "--dry-run")
    first = carried(capsys, *command)
    again = carried(capsys, *command)

    makes = {"biz 3", "biz 4", "job 70", "job 71"}
    assert {old for old, line in planned.items() if line["outcome"] == "to make"} == makes
    assert {old: line["new"] for old, line in again.items() if line["outcome"] == "there"} == {
        old: first[old]["new"] for old in makes
    }
    points = next(biz for biz in client.businesses.list()["items"] if biz["name"] == "points")
    assert (points["process_url"], points["process_stop_url"]) == (
        "https://points.example/process",
        "https://points.example/stopped",
    )
    spring = client.batches.get(first["job 70"]["new"])
    assert (spring.status, spring.start_index, spring.total, spring.rate) == ("created", 250, 1000, 20)
    assert (spring.biz_id, spring.note, spring.item_timeout) == (points["biz_id"], "batch-job:70", 45)
    serial = client.batches.get(first["job 71"]["new"])
    assert (serial.concurrency, serial.rate) == (1, 100)
    assert "without headers, rspParseField" in first["biz 4"]["reason"]
    assert first["job 72"]["reason"] == "is running: stop it there first, then dump the table again"
    assert first["job 74"]["reason"] == "its business 5 is not carried over"


def test_job_of_a_refused_business_is_refused_and_others_go_on(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called = json.dumps({"httpCallback": {"process": "http://169.254.169.254/process"}})
    (tmp_path / "biz.json").write_text(json.dumps([{"biz_id": 9, "biz_name": "x", "exec_extend_data": called}]))
    job = {"job_id": 1, "job_name": "j", "biz_id": 9, "process_data_total": 1, "status": 0}
    (tmp_path / "jobs.json").write_text(json.dumps([job]))

    lines = carried(capsys, "batch-jobs", str(tmp_path / "biz.json"), str(tmp_path / "jobs.json"), code=1)

    assert lines["biz 9"]["outcome"] == "refused"
    assert lines["job 1"]["reason"] == "its business 9 was refused"


def test_subscriptions_of_lists_are_carried_over_once(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file_source() as source:
        source.files |= {
            "/list": Hosted(b'["/a.bin", "/b.bin"]', content_type="application/json"),
            "/page": Hosted(b"\x00\x01", content_type="video/mp4"),
        }
        database = sqlite3.connect(tmp_path / "curator.db")
        database.execute("CREATE TABLE subscriptions (id INTEGER, name TEXT, type TEXT, url TEXT, is_active BOOLEAN)")
        database.execute("CREATE TABLE settings (key TEXT, value TEXT)")
        database.execute("INSERT INTO settings VALUES ('check_interval', '3600')")
        rows: list[tuple[object, ...]] = [
            (1, "list", "collection", source.url("/list"), 1),
            (2, "asleep", "collection", source.url("/list"), 0),
        ]
        rows += [(3, "video", "collection", source.url("/page"), 1), (4, "words", "keyword", None, 1)]
        database.executemany("INSERT INTO subscriptions VALUES (?, ?, ?, ?, ?)", rows)
        database.commit()
        database.close()

        first = carried(capsys, "subscriptions", str(tmp_path / "curator.db"))
        again = carried(capsys, "subscriptions", str(tmp_path / "curator.db"))

    assert [first[old]["outcome"] for old in "1234"] == ["made", "made", "skipped", "skipped"]
    assert [again[old]["new"] for old in "12"] == [first[old]["new"] for old in "12"]
    assert client.subscriptions.get(first["1"]["new"]).schedule == "rate(60 minutes)"
    assert client.subscriptions.get(first["2"]["new"]).schedule is None
    assert first["3"]["reason"].startswith("not a list that Tidegate reads: ")
    assert len(client.subscriptions.list()["items"]) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id\tname\n1\t2\t3\n", "line 2 has 3 cells, not 2"),
        ("id,name\n1,x\n", "has no column type, status, source_data"),
        ('{"id": ', "cannot be read"),
    ],
)
def test_dump_that_cannot_be_read_says_why(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    (tmp_path / "dump").write_text(content)
    assert main(["import", "php-tasks", str(tmp_path / "dump")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b'a:2:{i:0;s:2:"\xc3\xa9";i:1;b:1;}', ["é", True]),
        (b'a:2:{s:1:"a";d:0.5;s:1:"b";N;}', {"a": 0.5, "b": None}),
        (b'a:2:{i:0;O:1:"A":1:{s:4:"\0A\0x";i:1;}i:1;r:2;}', [{"x": 1}, {"x": 1}]),
        (b"a:0:{}", {}),
    ],
)
def test_serialized_php_is_read(data: bytes, read: object) -> None:
    assert PhpReader(data).value() == read


@pytest.mark.parametrize("data", [b"", b"i:1", b's:9:"x";', b'C:1:"A":0:{}', b"r:7;", b"a:9999999999:{}"])
def test_serialized_php_that_is_broken_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        PhpReader(data).value()
