"""Commands that start work, watch it, and list it."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer, RequestHandler

from tests.unit.client.fakes import Store
from tidegate.distribution.model import job_key
from tidegate_client import watching
from tidegate_client.cli import main
from tidegate_client.client import Client

SIGNATURE = "ab" * 32
TASK = "AsyncDownloadTask:1:2:/a/b:0b50a6a8-7e5b-4f39-9f0e-2f2f6ad0c111"
WHERE = ["--user", "root", "--dir", "/data"]
WHAT = ["--biz-id", "1", "--app-id", "2", "--file-path", "/a/b", "--file-name", "b.bin", "--signature", SIGNATURE]


NO_PRIVATE_URLS = {"name": "n", "allow_private_urls": False}


@pytest.fixture(autouse=True)
def api(httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HTTPServer:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("TIDEGATE_KEY", "k-1")
    monkeypatch.setattr(watching, "FIRST_POLL", 0.01)
    monkeypatch.chdir(tmp_path)
    return httpserver


def sent(server: HTTPServer, path: str) -> Any:
    return [json.loads(request.get_data()) for request, _ in server.log if request.path == path]


def test_download_submit_of_one_target_sends_host_and_container(
    api: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"task_id": TASK, "job_id": "j", "status": "Pending", "window_closes_at": "t"}
    api.expect_request("/v1/downloads", "POST").respond_with_json(answer, 202)

    assert main(["download", "submit", *WHAT, *WHERE, "--target", "a1:c1", "--json"]) == 0

    body = sent(api, "/v1/downloads")[0]
    assert (body["target_agent_id"], body["target_container_id"], body["biz_id"]) == ("a1", "c1", 1)
    assert "callback" not in body
    assert json.loads(capsys.readouterr().out)["task_id"] == TASK


def test_download_submit_takes_its_fields_from_a_library_file(api: HTTPServer) -> None:
    record = {"biz_id": 1, "app_id": 2, "file_path": "/a/b", "file_name": "b.bin", "signature": SIGNATURE}
    api.expect_request("/v1/files/f-1").respond_with_json(record)
    api.expect_request("/v1/downloads/batch", "POST").respond_with_json({"job_id": "j", "tasks": []}, 202)

    targets = ["--target", "a1", "--target", "a2"]
    assert main(["download", "submit", "--file", "f-1", *WHERE, *targets]) == 0

    body = sent(api, "/v1/downloads/batch")[0]
    assert body["targets"] == [{"agent_id": "a1", "container_id": ""}, {"agent_id": "a2", "container_id": ""}]
    assert (body["file_signature"], body["file_name"]) == (SIGNATURE, "b.bin")


def test_download_submit_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "submit", "--biz-id", "1", *WHERE, "--target", "a"]) == 2
    assert "--app-id, --file-path, --file-name, --signature" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "code"), [("Success", 0), ("Failed", 1), ("Timeout", 1)])
def test_download_watch_exits_with_the_tasks_outcome(
    api: HTTPServer, capsys: pytest.CaptureFixture[str], ended: str, code: int
) -> None:
    path = "/v1/downloads/0b50a6a8-7e5b-4f39-9f0e-2f2f6ad0c111"
    for status in ("Pending", "Running", ended):
        record = {"task_id": TASK, "status": status, "file_name": "b.bin"}
        api.expect_ordered_request(path).respond_with_json(record)

    assert main(["download", "watch", path.rpartition("/")[2], "--poll", "--json"]) == code

    statuses = [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()]
    assert statuses == ["Pending", "Running", ended]


def test_watch_without_a_terminal_prints_plain_lines(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"total": 4, "success": 1, "failed": 0, "downloading": 3, "timeout": 0}
    for status, done in (("Running", 1), ("Running", 2), ("Success", 4)):
        job = {"job_id": "j", "status": status, "file_name": "b.bin", "counts": counts | {"success": done}}
        api.expect_ordered_request(f"/v1/jobs/{job_key('AsyncDownloadJob:1')}").respond_with_json(job)
    api.expect_request("/v1/ws-tickets").respond_with_json({}, 404)

    assert main(["watch", "AsyncDownloadJob:1", "--poll"]) == 0

    progress = capsys.readouterr().err
    assert "\x1b" not in progress
    assert "\r" not in progress
    assert "1/4" in progress
    assert "4/4" in progress


def test_watch_time_out_exits_8(api: HTTPServer) -> None:
    api.expect_request("/v1/batches/bat-1").respond_with_json({"batch_id": "bat-1", "status": "running"})

    assert main(["watch", "bat-1", "--poll", "--timeout", "0.1"]) == 8


def test_job_show_lists_its_targets(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"job_id": "j", "status": "Success", "counts": {"total": 1, "success": 1}}
    api.expect_request("/v1/jobs/j").respond_with_json(job)
    targets = [{"agent_id": "a1", "container_id": "", "status": "Success", "error_code": 0}]
    api.expect_request("/v1/jobs/j/targets").respond_with_json({"items": targets})

    assert main(["job", "show", "j", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == job | {"targets": targets}


def test_export_submit_watch_downloads_the_result(
    api: HTTPServer, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.objects["e"] = b"a,b\n1,2\n"
    (tmp_path / "rows.json").write_text('[{"a": 1, "b": 2}]')
    done = {"task_id": "exp-1", "name": "n", "status": "completed", "file_name": "导出.csv", "size": 8}
    done |= {"progress": {"rows": 1, "total": 1, "percent": 100}}
    api.expect_request("/v1/task", "POST").respond_with_json({"task_id": "exp-1"}, 202)
    api.expect_oneshot_request("/v1/task", "GET").respond_with_json(done | {"status": "running"})
    api.expect_request("/v1/task", "GET").respond_with_json(done)
    api.expect_request("/v1/ws-tickets").respond_with_json({"code": "no", "detail": "no sockets"}, 404)
    api.expect_request("/v1/download/url").respond_with_json({"url": store.link("e"), "expires_at": "x"})

    arguments = ["--name", "n", "--data", "rows.json", "--type", "csv", "--template", '{"a": "A"}', "--watch"]
    assert main(["export", "submit", *arguments]) == 0

    assert (tmp_path / "导出.csv").read_bytes() == store.objects["e"]
    body = next(json.loads(request.get_data()) for request, _ in api.log if request.method == "POST")
    rows = [{"a": 1, "b": 2}]
    assert body == {"name": "n", "type": "csv", "encoding": "utf-8-sig", "template": {"a": "A"}, "source_data": rows}
    assert "saved to 导出.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "encoding"),
    [([], "utf-8-sig"), (["--encoding", "gb18030"], "gb18030"), (["--type", "excel"], None)],
)
def test_csv_has_a_byte_order_mark_by_default(
    api: HTTPServer, tmp_path: Path, arguments: list[str], encoding: str | None
) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text('[{"a": 100.00}]')
    api.expect_request("/v1/task", method="POST").respond_with_json({"task_id": "t1"}, status=202)
    assert main(["export", "submit", "--name", "n", "--data", str(rows), *arguments]) == 0
    sent = api.log[0][0].get_json()
    assert sent.get("encoding") == encoding
    assert b'"source_data": [{"a": 100.00}]' in api.log[0][0].data


def test_json_of_any_option_keeps_its_digits(api: HTTPServer) -> None:
    api.expect_request("/v1/task", method="POST").respond_with_json({"task_id": "t1"}, status=202)
    more = '{"source_data": [{"a": 12345678901234567.890}], "fill": {"values": {"b": 0.0000001}}}'
    texts = ["--header", '{"sum": 100.00}', "--footer", '{"tax": 1.10, "said": "1.10"}']
    assert main(["export", "submit", "--name", "n", "--fields", more, *texts]) == 0
    assert main(["api", "POST", "/v1/task", "-d", more]) == 0
    by_options, by_api = (request.data.decode() for request, _ in api.log)
    assert '"header": {"sum": 100.00}, "footer": {"tax": 1.10, "said": "1.10"}' in by_options
    assert more[1:-1] in by_options
    assert by_api == more


def test_decimals_of_a_program_are_sent_as_numbers(api: HTTPServer) -> None:
    api.expect_request("/v1/task", method="POST").respond_with_json({"task_id": "t1"}, status=202)
    client = Client(api.url_for(""), "k")
    client.exports.submit({"name": "n", "source_data": [{"a": Decimal("100.00"), "b": Decimal(7)}]})
    assert b'[{"a": 100.00, "b": 7}]' in api.log[0][0].data
    with pytest.raises(TypeError, match="cannot be sent"):
        client.exports.submit({"name": "n", "source_data": [{"a": Decimal("NaN")}]})


def test_failed_export_exits_1_and_prints_the_reason(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"task_id": "exp-1", "name": "n", "status": "failed", "failed_reason": "the source answered 500"}
    api.expect_request("/v1/task", "POST").respond_with_json({"task_id": "exp-1"}, 202)
    api.expect_request("/v1/task", "GET").respond_with_json(failed)

    assert main(["export", "submit", "--name", "n", "--source-url", "https://x.example", "--watch"]) == 1
    assert "the source answered 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "method", "path", "body"),
    [
        ("queue pause", "POST", "/v1/queue/pause", {"scope": "all"}),
        ("queue resume export", "POST", "/v1/queue/resume", {"scope": "export"}),
        ("queue capacity export=4 batch=2", "POST", "/v1/queue/capacity", {"export": 4, "batch": 2}),
        ("request cancel r1", "POST", "/v1/requests/r1/cancel", {}),
        ("request prioritize r1 2", "POST", "/v1/requests/r1/prioritize", {"priority": 2}),
        ("request create check --priority 1", "POST", "/v1/requests", {"type": "check", "payload": {}, "priority": 1}),
        ("request retry-now r1", "POST", "/v1/requests/r1/retry-now", {}),
        (
            "request bulk retry-now --type download",
            "POST",
            "/v1/requests/bulk",
            {"action": "retry-now", "type": "download", "cursor": None},
        ),
        ("subscription create s https://x", "POST", "/v1/subscriptions", {"name": "s", "source_url": "https://x"}),
        (
            "subscription update s1 --name none --schedule none",
            "PATCH",
            "/v1/subscriptions/s1",
            {"name": "none", "schedule": None},
        ),
        ("subscription download s1", "POST", "/v1/subscriptions/s1/download", {}),
        (
            "subscription update s1 --recursive --on-delete trash --compare head",
            "PATCH",
            "/v1/subscriptions/s1",
            {"recursive": True, "on_delete": "trash", "compare": "head"},
        ),
        ("batch start b1", "POST", "/v1/batches/b1/start", {}),
        ("batch stop b1", "POST", "/v1/batches/b1/stop", {}),
        ("batch rate b1 50", "PATCH", "/v1/batches/b1", {"rate": 50}),
        (
            "batch update b1 --on-item-failure skip --rate 5",
            "PATCH",
            "/v1/batches/b1",
            {"on_item_failure": "skip", "rate": 5},
        ),
        (
            'batch update b1 --concurrency 4 --retries 2 --retry-delay 0 --item-timeout 60 --backoff {"base":2}',
            "PATCH",
            "/v1/batches/b1",
            {"concurrency": 4, "retries": 2, "retry_delay": 0, "item_timeout": 60, "backoff": {"base": 2}},
        ),
        ("biz create n https://x", "POST", "/v1/biz", {"name": "n", "process_url": "https://x"}),
        (
            "export submit --name orders --encoding utf-8 --source-url https://x.example --schedule daily",
            "POST",
            "/v1/export-schedules",
            {
                "name": "orders",
                "encoding": "utf-8",
                "source_url": "https://x.example",
                "schedule": "daily",
            },
        ),
        ("export change s1 --schedule hourly", "PATCH", "/v1/export-schedules/s1", {"schedule": "hourly"}),
        (
            """export change s1 --name orders --revision 3 --fields {"delimiter":null}""",
            "PATCH",
            "/v1/export-schedules/s1",
            {"name": "orders", "revision": 3, "delimiter": None},
        ),
        ("export pause s1", "POST", "/v1/export-schedules/s1/pause", {}),
        ("export resume s1", "POST", "/v1/export-schedules/s1/resume", {}),
        ("export delete t1 t2", "POST", "/v1/tasks/delete", {"task_ids": ["t1", "t2"]}),
        ("compensation trigger", "POST", "/v1/compensation/trigger", {}),
        ("project create name", "POST", "/v1/projects", {"name": "name", "allow_private_urls": False}),
        ("project rotate-secret p1", "POST", "/v1/projects/p1/callback-secrets", {}),
        (
            "batch create --biz b --name n --rate 2.5 --rows f-1 --rows-format csv",
            "POST",
            "/v1/batches",
            {"biz_id": "b", "name": "n", "rate": 2.5, "source": {"file_id": "f-1", "format": "csv"}},
        ),
        (
            "batch create --biz b --name n --rate 5 --s3-prefix s3://acme-data/in/",
            "POST",
            "/v1/batches",
            {"biz_id": "b", "name": "n", "rate": 5, "source": {"s3_prefix": "s3://acme-data/in/"}},
        ),
        (
            "batch create --biz b --name n --rate 5 --s3-inventory s3://acme-data/inv/manifest.json",
            "POST",
            "/v1/batches",
            {"biz_id": "b", "name": "n", "rate": 5, "source": {"s3_inventory": "s3://acme-data/inv/manifest.json"}},
        ),
        (
            "batch create --biz b --name n --rate 5 --rows f-1 --rows-encoding gbk --rows-delimiter tab",
            "POST",
            "/v1/batches",
            {
                "biz_id": "b",
                "name": "n",
                "rate": 5,
                "source": {"file_id": "f-1", "encoding": "gbk", "delimiter": "\t"},
            },
        ),
        (
            "batch schedule create daily --biz b --name n --rate 5 --total 10 --retries 2",
            "POST",
            "/v1/batch-schedules",
            {"schedule": "daily", "batch": {"biz_id": "b", "name": "n", "rate": 5, "total": 10, "retries": 2}},
        ),
        ("batch schedule change s1 hourly", "PATCH", "/v1/batch-schedules/s1", {"schedule": "hourly"}),
        ("batch schedule pause s1", "PATCH", "/v1/batch-schedules/s1", {"paused": True}),
        ("batch schedule resume s1", "PATCH", "/v1/batch-schedules/s1", {"paused": False}),
        (
            "batch schedule change s1 --rate 20 --max-errors 3 --revision 2",
            "PATCH",
            "/v1/batch-schedules/s1",
            {"batch": {"rate": 20, "max_errors": 3}, "revision": 2},
        ),
        ("key create p1 --scope read --scope write", "POST", "/v1/projects/p1/keys", {"scopes": ["read", "write"]}),
        (
            "key create p1 --scope read --name ci --expires-in 60",
            "POST",
            "/v1/projects/p1/keys",
            {"scopes": ["read"], "name": "ci", "expires_in": 60},
        ),
        ("key create-admin --name second", "POST", "/v1/keys", {"name": "second"}),
        ("key rotate admin", "POST", "/v1/keys/admin/rotate", {}),
        ("key rotate k1 --overlap 0", "POST", "/v1/keys/k1/rotate", {"overlap_s": 0}),
        ("project update p1 --name n --no-allow-private-urls", "PATCH", "/v1/projects/p1", NO_PRIVATE_URLS),
        (
            "project update p1 --quota queued=5 --quota stored_bytes=none --quota share.export=2 --quota share.batch=1",
            "PATCH",
            "/v1/projects/p1",
            {"quotas": {"queued": 5, "stored_bytes": None, "share": {"export": 2, "batch": 1}}},
        ),
        (
            "ingest https://a.example/f --biz-id 1 --app-id 2 --file-path /f --mirror https://b.example/f "
            "--mirror https://c.example/f --connections 2 --host-downloads 1",
            "POST",
            "/v1/files",
            {
                "biz_id": 1,
                "app_id": 2,
                "file_path": "/f",
                "source_url": "https://a.example/f",
                "mirrors": ["https://b.example/f", "https://c.example/f"],
                "politeness": {"connections": 2, "host_downloads": 1},
            },
        ),
        (
            "subscription create debs https://a.example/ --concurrency 3 --delay-s 0.5",
            "POST",
            "/v1/subscriptions",
            {
                "name": "debs",
                "source_url": "https://a.example/",
                "concurrency": 3,
                "politeness": {"delay_s": 0.5},
            },
        ),
        (
            "project update p1 --gse-target web-* --gse-target web-1/* --gse-dir /data/app --gse-user=",
            "PATCH",
            "/v1/projects/p1",
            {"gse": {"targets": ["web-*", "web-1/*"], "dirs": ["/data/app"], "users": []}},
        ),
        ("project update p1 --no-shared-signatures", "PATCH", "/v1/projects/p1", {"shared_signatures": False}),
        ("project update p1 --quota share=none", "PATCH", "/v1/projects/p1", {"quotas": {"share": None}}),
    ],
)
def test_each_command_calls_its_route(
    api: HTTPServer, command: str, method: str, path: str, body: dict[str, Any]
) -> None:
    made = {"ok": True, "deleted": 2, "callback_secret": "whsec_x", "project_id": "p1", "batch_id": "b1"}
    made |= {"changed": 1, "skipped": 0}
    api.expect_request(path, method).respond_with_json(made)

    assert main([*command.split(), "--json"]) == 0
    assert sent(api, path) == [body]


def test_confirmed_deletions_are_named_in_the_url(api: HTTPServer) -> None:
    api.expect_request("/v1/subscriptions/s1/download", "POST").respond_with_json({"request_id": "r1"}, 202)
    assert main(["subscription", "download", "s1", "--confirm-trash", "40"]) == 0
    assert [request.query_string for request, _ in api.log] == [b"confirm_trash=40"]


def test_large_report_is_asked_for_until_it_is_ready(
    api: HTTPServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_client.cli.commands.batches.time.sleep", lambda _: None)

    def asked() -> RequestHandler:
        query = {"all": "true", "format": "csv"}
        return api.expect_ordered_request("/v1/batches/b1/results", "GET", query_string=query)

    not_ready = {"code": "not_ready", "detail": "3 of 9 parts of the report are ready: ask again"}
    for _ in range(2):
        asked().respond_with_json(not_ready, 409)
    asked().respond_with_json({"url": "https://s3.example/report", "file_name": "r.csv"})

    assert main(["batch", "results", "b1", "--all", "--format", "csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"] == "https://s3.example/report"


def test_new_project_and_batch_name_the_next_command(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    api.expect_request("/v1/projects", "POST").respond_with_json({"project_id": "p1"}, 201)
    api.expect_request("/v1/batches", "POST").respond_with_json({"batch_id": "b1"}, 201)

    assert main(["project", "create", "name"]) == 0
    assert main(["batch", "create", "--biz", "b", "--name", "n", "--total", "5", "--rate", "5"]) == 0

    assert capsys.readouterr().err.splitlines() == [
        "next: tidegate key create p1 --scope read --scope write",
        "next: tidegate batch start b1 --watch",
    ]


def test_new_batch_is_watched_until_it_ends(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    api.expect_request("/v1/batches", "POST").respond_with_json({"batch_id": "bat-1"}, 201)
    api.expect_request("/v1/batches/bat-1/start", "POST").respond_with_json({"batch_id": "bat-1", "status": "running"})
    api.expect_request("/v1/batches/bat-1").respond_with_json({"batch_id": "bat-1", "status": "failed"})
    words = ["batch", "create", "--biz", "b", "--name", "n", "--total", "5", "--rate", "5", "--watch"]

    assert main(words) == 2
    assert "give --start too" in capsys.readouterr().err
    assert sent(api, "/v1/batches") == []
    assert main([*words, "--start"]) == 1
    assert capsys.readouterr().err.splitlines() == ["batch bat-1", "failed  0:00"]


def test_rows_are_read_from_a_file_named_with_or_without_an_at(
    api: HTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.expect_request("/v1/task", "POST").respond_with_json({"task_id": "req-1"}, 202)
    (tmp_path / "rows.json").write_text('[{"a": "1"}]')

    assert [main(["export", "submit", "--name", "n", "--data", name]) for name in ("rows.json", "@rows.json")] == [0, 0]
    assert [body["source_data"] for body in sent(api, "/v1/task")] == [[{"a": "1"}]] * 2
    assert main(["export", "submit", "--name", "n", "--data", "other.json"]) == 1
    assert capsys.readouterr().err.endswith("tidegate: other.json: No such file or directory\n")


def test_webhook_secret_prints_the_secret_of_an_origin(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    api.expect_request("/v1/callback-secret", "GET", query_string={"origin": "https://a.example"}).respond_with_json(
        {"origin": "https://a.example:443", "callback_secret": "whsec_x"}
    )
    assert main(["webhook", "secret", "--origin", "https://a.example", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["callback_secret"] == "whsec_x"


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("key delete k1", "/v1/keys/k1"),
        ("subscription delete s1", "/v1/subscriptions/s1"),
        ("export unschedule s1", "/v1/export-schedules/s1"),
        ("batch schedule delete s1", "/v1/batch-schedules/s1"),
        ("batch delete b1", "/v1/batches/b1"),
        ("biz delete z1", "/v1/biz/z1"),
        ("queue clear-pause https://files.example", "/v1/host-pauses/https:files.example"),
        ("credential delete shop", "/v1/credentials/shop"),
        ("project retire-secret p1", "/v1/projects/p1/callback-secrets/previous"),
    ],
)
def test_each_delete_command_calls_its_route(api: HTTPServer, command: str, path: str) -> None:
    api.expect_request(path, "DELETE").respond_with_data(status=204)

    assert main(command.split()) == 0
    assert [request.path for request, _ in api.log] == [path]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("key list p1", "/v1/projects/p1/keys"),
        ("key list", "/v1/keys"),
        ("project show p1", "/v1/projects/p1"),
        ("export schedules", "/v1/export-schedules"),
        ("export runs s1", "/v1/export-schedules/s1/runs"),
        ("queue host-pauses", "/v1/host-pauses"),
        ("batch schedule list", "/v1/batch-schedules"),
        ("batch schedule show s1", "/v1/batch-schedules/s1"),
        ("batch schedule runs s1", "/v1/batch-schedules/s1/runs"),
    ],
)
def test_each_show_and_list_command_calls_its_route(api: HTTPServer, command: str, path: str) -> None:
    record = {"key_id": "k1", "name": "ci", "scopes": ["read"], "state": "active"}
    api.expect_request(path, "GET").respond_with_json({"items": [record], "next_cursor": None})

    assert main(command.split()) == 0
    assert [request.path for request, _ in api.log] == [path]


@pytest.mark.parametrize("quota", ["queued", "queued=-1", "queued=many", "quued=1", "share=2", "share.export=none"])
def test_invalid_quota_is_a_usage_error(api: HTTPServer, quota: str) -> None:
    assert main(["project", "update", "p1", "--quota", quota]) == 2
    assert main(["project", "update", "p1"]) == 2
    assert api.log == []


def test_credentials_are_read_from_stdin(api: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    api.expect_request("/v1/credentials/shop", "PUT").respond_with_data(status=204)
    monkeypatch.setattr("sys.stdin", io.StringIO("Cookie: session=a:b\nX-Token: t\n"))

    assert main(["credential", "put", "shop", "--origin", "https://a.example", "--origin", "https://b.example"]) == 0
    assert sent(api, "/v1/credentials/shop") == [
        {"headers": {"Cookie": "session=a:b", "X-Token": "t"}, "origins": ["https://a.example", "https://b.example"]}
    ]

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["credential", "put", "shop", "--origin", "https://a.example"]) == 2


def test_record_for_people_leaves_out_fields_without_a_value(
    api: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"agent_id": "a", "zone": None, "groups": ["x", "y"], "labels": {}, "counts": {"total": 3, "failed": 0}}
    api.expect_request("/v1/agents/a").respond_with_json(record)
    api.expect_request("/v1/agents").respond_with_json({"items": [record]})

    main(["fleet", "show", "a"])
    main(["fleet", "show", "a", "--fields", "zone"])
    main(["fleet", "list", "--fields", "groups,labels,counts"])

    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["agent_id", "a"]
    assert ["groups", "x, y"] in lines
    assert lines.count(["zone", "-"]) == 1, "a field of --fields is shown without a value too"
    assert lines[-1] == ["x,", "y    -       total 3"]


def test_update_without_changes_is_a_usage_error(api: HTTPServer) -> None:
    for command in ("batch update b1", "fleet set a", "subscription update s1"):
        assert main(command.split()) == 2
    assert api.log == []


def test_queue_stats_print_a_row_for_each_channel(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"capacity": 4, "running": 1, "queued": 2, "paused": True, "oldest_wait_s": 3.5}
    api.expect_request("/v1/queue/stats").respond_with_json({"channels": {"export": figures}})

    main(["queue", "stats"])

    assert capsys.readouterr().out.splitlines()[1].split() == ["export", "4", "1", "2", "yes", "3.5"]


def test_stats_print_a_row_for_each_type(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    used = {"mean_cpu_s": 0.2, "peak_memory_mb": 90, "bytes": 7}
    figures = {"scan": {"count": 3, "success_rate": 1.0, "mean_s": 0.5, "p95_s": 0.9, **used}}
    api.expect_request("/v1/stats").respond_with_json({"since": "a", "until": "b", "types": figures})

    main(["stats"])

    assert capsys.readouterr().out.splitlines()[1].split() == ["scan", "3", "1.0", "0.5", "0.9", "0.2", "90", "7"]


def test_archive_lists_all_pages_of_a_day_and_filter(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    archived = {"type": "export", "status": "completed", "channel": "export", "attempts": 1, "create_time": "a"}
    wanted = {"day": "2026-11-16", "type": "export", "status": "completed"}
    pages = (
        {"items": [{"request_id": "exp-1", **archived}], "next_cursor": "exp-1"},
        {"items": [{"request_id": "exp-2"}]},
    )
    api.expect_ordered_request("/v1/archive", query_string=wanted).respond_with_json(pages[0])
    api.expect_ordered_request("/v1/archive", query_string={**wanted, "cursor": "exp-1"}).respond_with_json(pages[1])

    main(["archive", "2026-11-16", "--type", "export", "--status", "completed", "--all"])

    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:3] == ["REQUEST", "ID", "TYPE"]
    assert (first, second[0]) == (["exp-1", "export", "completed", "export", "1", "a", "-"], "exp-2")


def test_archive_of_an_invalid_day_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["archive", "yesterday"])

    assert end.value.code == 2
    assert "give a day as in 2026-11-16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("stats --since 2026-01-01T00:00:00Z", "/v1/stats"),
        ("audit req-1", "/v1/audit"),
        ("audit --actor key01a --action key.create --since 2026-01-01 --until 2026-02-01", "/v1/audit"),
        ("archive", "/v1/archive"),
        ("compensation show", "/v1/compensation"),
        ("queue stats", "/v1/queue/stats"),
        ("queue list --channel export", "/v1/queue"),
        ("request show r1", "/v1/requests/r1"),
        ("subscription list", "/v1/subscriptions"),
        ("subscription show s1", "/v1/subscriptions/s1"),
        ("subscription tasks s1", "/v1/subscriptions/s1/tasks"),
        ("batch show b1", "/v1/batches/b1"),
        ("batch logs b1", "/v1/batches/b1/logs"),
        ("biz list", "/v1/biz"),
        ("export list --status failed", "/v1/tasks"),
        ("export status t1", "/v1/task"),
        ("download list --job j", "/v1/downloads"),
        ("callback list --task t", "/v1/callbacks"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_each_read_command_prints_text_and_json(
    api: HTTPServer, capsys: pytest.CaptureFixture[str], command: str, path: str, form: list[str]
) -> None:
    api.expect_request(path, "GET").respond_with_json({"items": [], "next_cursor": None})

    assert main([*command.split(), *form]) == 0
    out = capsys.readouterr().out
    if form:
        assert json.loads(out)["items"] == []


def test_redrive_names_the_targets_that_were_left_out(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    skipped = [{"agent_id": "a1", "container_id": "c1", "newer_job": "k-2"}]
    answer = {"job_id": "j-3", "key": "k-3", "targets": 4, "skipped": skipped, "skipped_targets": 3}
    api.expect_request("/v1/jobs/k-1/redrive", "POST").respond_with_json(answer, 202)

    assert main(["job", "redrive", "k-1"]) == 0

    told = capsys.readouterr().err
    assert "a1:c1 is left out: the newer Job k-2 sent content to the same path" in told
    assert "2 more targets are left out" in told
    assert "force" not in sent(api, "/v1/jobs/k-1/redrive")[0]


def test_redrive_of_superseded_targets_only_exits_with_the_reason(
    api: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {"code": "newer_job", "title": "t", "detail": "newer content was sent by the Job k-2", "status": 409}
    api.expect_request("/v1/jobs/k-1/redrive", "POST").respond_with_json(problem, 409)

    assert main(["job", "redrive", "k-1", "--status", "Superseded", "--force"]) == 5

    assert "newer content was sent by the Job k-2" in capsys.readouterr().err
    assert sent(api, "/v1/jobs/k-1/redrive")[0] == {"statuses": ["Superseded"], "force": True}


def test_watch_of_a_superseded_task_ends(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"task_id": TASK, "job_id": "j", "status": "Superseded", "error_msg": "superseded by newer content"}
    api.expect_request("/v1/downloads/0b50a6a8-7e5b-4f39-9f0e-2f2f6ad0c111").respond_with_json(record)

    assert main(["distribute", "watch", TASK.rsplit(":", 1)[-1], "--poll", "--timeout", "5"]) == 1

    assert "superseded by newer content" in capsys.readouterr().err


def test_release_put_sends_what_its_options_say(api: HTTPServer) -> None:
    answer = {"name": "app", "revision": 1, "status": "rolling"}
    api.expect_request("/v1/releases/app", "PUT").respond_with_json(answer, 201)
    hosts = ["--group", "web", "--label", "zone=a", "--target", "h-1"]
    limits = ["--wave", "1:300:0", "--wave", "50", "--on-failure", "stop", "--keep", "3", "--heal"]
    checks = ["--hook", "reload", "--health", "http://127.0.0.1:8080/healthz", "--health-timeout", "9", "--soak", "120"]
    files = ["--file", "f-1=/etc/app", "--tar", "f-2=/srv/app", "--user", "root"]

    assert main(["release", "put", "app", *files, *hosts, *limits, *checks, "--activate", "manual"]) == 0

    assert sent(api, "/v1/releases/app")[0] == {
        "files": [
            {"file_id": "f-1", "target_file_dir": "/etc/app", "target_user": "root"},
            {"file_id": "f-2", "target_file_dir": "/srv/app", "target_user": "root", "unpack": "tar"},
        ],
        "targets": {"groups": ["web"], "labels": {"zone": "a"}, "agents": ["h-1"]},
        "waves": [{"percent": 1, "wait_s": 300, "max_failed_percent": 0}, {"percent": 50}],
        "on_failure": "stop",
        "keep": 3,
        "heal": True,
        "hook": "reload",
        "health": {"url": "http://127.0.0.1:8080/healthz", "timeout_s": 9, "soak_s": 120},
        "activate": "manual",
    }


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--group", "web"], "which files?"),
        (["--file", "f-1=/etc/app"], "for which hosts?"),
        (["--file", "f-1=etc", "--group", "web"], "is not FILE=/directory"),
        (["--file", "f-1=/etc", "--group", "web", "--soak", "9"], "need --health"),
        (["--file", "f-1=/etc", "--group", "web", "--wave", "1:x"], "is not PERCENT"),
    ],
)
def test_release_put_without_sense_sends_nothing(
    api: HTTPServer, options: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["release", "put", "app", "--user", "root", *options])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert fault in capsys.readouterr().err
    assert api.log == []


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["rollback", "app"], "rollback", {}),
        (["rollback", "app", "--to", "3"], "rollback", {"to": 3}),
        (["gate", "app", "--pass"], "gate", {"pass": True}),
        (["gate", "app", "--fail", "--reason", "budget"], "gate", {"pass": False, "reason": "budget"}),
    ],
)
def test_release_goes_back_and_is_judged_by_one_command(
    api: HTTPServer, words: list[str], path: str, body: dict[str, Any]
) -> None:
    api.expect_request(f"/v1/releases/app/{path}", "POST").respond_with_json({"name": "app"}, 202)

    assert main(["release", *words]) == 0

    assert sent(api, f"/v1/releases/app/{path}") == [body]


def test_drift_and_files_of_a_host_are_tables(api: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    drift = {"agent_id": "web-1", "revision": 4, "drift": ["/etc/app/a: its content was changed"], "reported_at": "t"}
    api.expect_request("/v1/releases/app/drift").respond_with_json({"items": [drift], "next_cursor": None})
    file = {"path": "/etc/app/a", "sha256": SIGNATURE, "release": "app", "revision": 4, "drift": None}
    api.expect_request("/v1/agents/web-1/files").respond_with_json({"items": [file], "next_cursor": None})

    assert main(["release", "drift", "app"]) == 0
    assert main(["fleet", "show", "web-1", "--files"]) == 0

    told = capsys.readouterr().out.splitlines()
    assert "web-1" in told[1]
    assert "its content was changed" in told[1]
    assert told[3].split()[:1] == ["/etc/app/a"]
    assert "app" in told[3]
