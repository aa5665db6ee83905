"""The command line: requests, output and exit codes."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tests.support.http_servers import free_port
from tests.unit.client.fakes import Store, sha256
from tidegate_client.cli import main

CONTENT = b"tide" * 100_000
Run = Callable[..., int]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("TIDEGATE_API_URL", "TIDEGATE_KEY", "TIDEGATE_WS_URL", "TIDEGATE_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def logged_in(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> HTTPServer:
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("TIDEGATE_KEY", "k-1")
    return httpserver


def file_record(**more: Any) -> dict[str, Any]:
    record = {"file_id": "f-1", "biz_id": 1, "app_id": 2, "file_path": "/a/b", "file_name": "b.bin", "state": "ready"}
    return record | {"signature": sha256(CONTENT), "size": len(CONTENT), "created_at": "2026-01-01T00:00:00Z"} | more


def sent(server: HTTPServer, path: str) -> Any:
    return [json.loads(request.get_data()) for request, _ in server.log if request.path == path]


def test_login_checks_the_key_and_stores_it_privately(httpserver: HTTPServer, home: Path) -> None:
    httpserver.expect_request("/v1/files").respond_with_json({"items": []})
    url = httpserver.url_for("").rstrip("/")

    assert main(["login", "--api-url", url, "--key", "k-9"]) == 0

    stored = home / "config/tidegate/config.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert json.loads(stored.read_text()) == {"api_url": url, "key": "k-9"}
    httpserver.expect_request("/v1/jobs", headers={"Authorization": "Bearer k-9"}).respond_with_json({"items": []})
    assert main(["job", "list"]) == 0


def test_key_as_an_argument_is_a_warning(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    httpserver.expect_request("/v1/files").respond_with_json({"items": []})
    url = httpserver.url_for("").rstrip("/")

    assert main(["login", "--api-url", url, "--key", "k-9"]) == 0
    warned = capsys.readouterr().err
    assert "warning: a key in a command line" in warned
    assert "k-9" not in warned

    monkeypatch.setattr("sys.stdin", io.StringIO("k-9\n"))
    assert main(["login", "--api-url", url, "--key", "-"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_login_with_an_unknown_key_stores_nothing(httpserver: HTTPServer, home: Path) -> None:
    httpserver.expect_request("/v1/files").respond_with_json({"code": "unauthenticated", "detail": "no"}, 401)

    assert main(["login", "--api-url", httpserver.url_for(""), "--key", "bad"]) == 3
    assert not (home / "config").exists()


def test_key_without_read_scope_can_log_in(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/files").respond_with_json({"code": "scope_missing", "detail": "no"}, 403)

    assert main(["login", "--api-url", httpserver.url_for(""), "--key", "agent-key"]) == 0


def test_stored_key_is_not_sent_to_another_address(
    httpserver: HTTPServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = home / "config/tidegate/config.json"
    stored.parent.mkdir(parents=True)
    stored.write_text(json.dumps({"api_url": "https://tidegate.example", "key": "secret"}))
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for("").rstrip("/"))
    httpserver.expect_request("/v1/jobs").respond_with_json({"items": []})

    main(["job", "list"])

    assert "Authorization" not in httpserver.log[0][0].headers


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 3), (403, 3), (404, 4), (409, 5), (410, 4), (413, 2), (422, 2)]
)
def test_exit_code_depends_on_the_http_status(
    logged_in: HTTPServer, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    problem = {"code": "why", "detail": "because", "errors": [{"loc": ["body", "name"], "msg": "too short"}]}
    logged_in.expect_request("/v1/files/f").respond_with_json(problem, status)

    assert main(["file", "show", "f"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "because (why)" in captured.err
    assert "body.name: too short" in captured.err


def test_errors_are_json_with_the_json_option(logged_in: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.expect_request("/v1/files/f").respond_with_json({"code": "not_found", "detail": "no"}, 404)

    assert main(["file", "show", "f", "--json"]) == 4
    problem = json.loads(capsys.readouterr().err)
    assert (problem["code"], problem["status"], problem["error"]) == ("not_found", 404, "NotFound")


def test_failing_api_exits_7_and_absent_api_exits_6(
    logged_in: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidegate_client.http.BoundedRetry.get_backoff_time", lambda _self: 0.01)
    logged_in.expect_request("/v1/queue/stats").respond_with_json({}, 500)
    assert main(["queue", "stats"]) == 7

    absent = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("TIDEGATE_API_URL", absent)
    assert main(["queue", "stats"]) == 6
    assert f"the API at {absent} does not answer: [Errno " in capsys.readouterr().err


def test_missing_login_exits_3_and_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "stats"]) == 3
    assert "tidegate login" in capsys.readouterr().err
    for wrong in (["queue"], ["nonsense"], ["request", "prioritize", "r", "11"], ["queue", "capacity", "export"]):
        with pytest.raises(SystemExit) as raised:
            main(wrong)
        assert raised.value.code == 2


@pytest.mark.parametrize(
    ("words", "listed"), [([], "distribute"), (["batch"], "create"), (["batch", "schedule"], "runs")]
)
def test_command_without_its_subcommand_lists_them(
    words: list[str], listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"\n    {listed} " in capsys.readouterr().err


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--help"])

    assert raised.value.code == 0
    assert "6  the API cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["before", "after"])
def test_json_option_works_before_and_after_the_command(
    logged_in: HTTPServer, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    page = {"items": [{"project_id": "p", "name": "海"}], "next_cursor": "c"}
    logged_in.expect_request("/v1/projects").respond_with_json(page)

    main(["--json", "project", "list"] if where == "before" else ["project", "list", "--json"])

    assert json.loads(capsys.readouterr().out) == page


def test_tables_align_wide_characters(logged_in: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"project_id": "p1", "name": "海门"}, {"project_id": "p2", "name": "tide", "group": "g"}]
    logged_in.expect_request("/v1/projects").respond_with_json({"items": items})

    main(["project", "list"])

    assert capsys.readouterr().out.splitlines() == [
        "PROJECT ID  NAME  GROUP",
        "p1          海门  -",
        "p2          tide  g",
    ]


def test_records_inside_a_record_are_a_table_below_it(
    logged_in: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        {"file_name": "app.conf", "target_file_dir": "/etc/app", "mode": "0640", "unpack": None},
        {"file_name": "app.tar", "target_file_dir": "/srv/app", "mode": None, "unpack": None},
    ]
    release = {"name": "app", "files": files, "waves": [{"percent": 10, "wait_s": 300}], "withdrawn": [], "note": None}
    logged_in.expect_request("/v1/releases/app").respond_with_json(release)

    main(["release", "show", "app"])

    assert capsys.readouterr().out.splitlines() == [
        "name  app",
        "",
        "files",
        "  FILE NAME  TARGET FILE DIR  MODE",
        "  app.conf   /etc/app         0640",
        "  app.tar    /srv/app         -",
        "",
        "waves",
        "  PERCENT  WAIT S",
        "  10       300",
    ]


def test_file_put_uploads_and_completes(
    logged_in: HTTPServer, store: Store, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "b.bin").write_bytes(CONTENT)
    headers = {"If-None-Match": "*", "Content-Length": str(len(CONTENT)), "x-amz-checksum-sha256": "c3Vt"}
    created = {"file_id": "f-1", "upload_url": store.link("up"), "upload_headers": headers, "expires_at": "x"}
    logged_in.expect_request("/v1/files", "POST").respond_with_json(created, 201)
    logged_in.expect_request("/v1/files/f-1/complete", "POST").respond_with_json(file_record())

    code = main(["file", "put", "b.bin", "--biz-id", "1", "--app-id", "2", "--file-path", "/a/b", "--json"])

    assert code == 0
    assert store.objects["up"] == CONTENT
    assert {name.lower(): value for name, value in headers.items()}.items() <= store.put_headers[0].items()
    assert sent(logged_in, "/v1/files")[0]["signature"] == sha256(CONTENT)
    assert json.loads(capsys.readouterr().out)["file_id"] == "f-1"


def test_file_get_resumes_verifies_and_prints_the_path(
    logged_in: HTTPServer, store: Store, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.objects["f"], store.cuts = CONTENT, [100_000]
    logged_in.expect_request("/v1/files/f-1").respond_with_json(file_record())
    logged_in.expect_request("/v1/files/f-1/url").respond_with_json({"url": store.link("f"), "expires_at": "x"})

    assert main(["file", "get", "f-1"]) == 0

    assert (home / "b.bin").read_bytes() == CONTENT
    captured = capsys.readouterr()
    assert "saved_to" in captured.out
    assert "100 %" in captured.err


def test_file_get_of_wrong_content_exits_1(logged_in: HTTPServer, store: Store, home: Path) -> None:
    store.objects["f"] = CONTENT[:-1] + b"x"
    logged_in.expect_request("/v1/files/f-1").respond_with_json(file_record())
    logged_in.expect_request("/v1/files/f-1/url").respond_with_json({"url": store.link("f"), "expires_at": "x"})

    assert main(["file", "get", "f-1", "-o", "out.bin"]) == 1
    assert not (home / "out.bin").exists()
