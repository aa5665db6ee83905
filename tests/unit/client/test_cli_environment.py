"""The command in difficult environments: closed pipes, terminals without UTF-8, wrong addresses, malformed keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.http_servers import serve
from tidegate_client.cli import main
from tidegate_client.client import Client
from tidegate_client.config import Config, load, save
from tidegate_client.errors import BadAnswer, ConfigError, UsageError

NAMED = {"project_id": "p", "name": "潮é"}


@pytest.fixture(autouse=True)
def clean_environment(httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("TIDEGATE_KEY", "k-1")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    httpserver.expect_request("/v1/projects/p").respond_with_json(NAMED)


def tidegate(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tidegate_client", *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gb18030"])
def test_terminal_without_utf8_gets_escaped_output(encoding: str) -> None:
    table = tidegate("project", "show", "p", PYTHONIOENCODING=encoding)
    shown = tidegate("project", "show", "p", "--json", PYTHONIOENCODING=encoding)

    assert (table.returncode, table.stderr) == (0, b"")
    assert json.loads(shown.stdout.decode(encoding)) == NAMED


@pytest.mark.parametrize("words", [["--help"], ["project", "show", "p"], ["file", "show"]])
def test_closed_pipe_causes_no_error_message(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tidegate_client", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)

    assert b"BrokenPipe" not in done.stderr
    assert done.returncode == (2 if words == ["file", "show"] else 0)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [(404, b"<Error>no such bucket</Error>", "text/xml"), (403, b'{"message": "Forbidden"}', "application/json")],
)
def test_login_at_a_wrong_address_is_refused(
    httpserver: HTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, body: bytes, kind: str
) -> None:
    httpserver.expect_request("/wrong/v1/files").respond_with_data(body, status, content_type=kind)

    assert main(["login", "--api-url", httpserver.url_for("/wrong"), "--key", "k"]) == 3

    assert "is the address complete?" in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


def test_key_with_a_trailing_line_break_works(httpserver: HTTPServer, tmp_path: Path) -> None:
    httpserver.expect_request("/v1/files", headers={"Authorization": "Bearer k-9"}).respond_with_json({"items": []})

    assert main(["login", "--api-url", httpserver.url_for("") + " ", "--key", " k-9\r\n"]) == 0

    stored = json.loads((tmp_path / "config/tidegate/config.json").read_text())
    assert stored == {"api_url": httpserver.url_for("").rstrip("/"), "key": "k-9"}


@pytest.mark.parametrize("key", ["k 9", "k\n9", "ключ", "“k”"])
def test_malformed_key_is_refused_before_it_is_sent(key: str) -> None:
    with pytest.raises(ConfigError, match="copy it again"):
        Client("http://127.0.0.1:1", key)


@pytest.mark.parametrize(("status", "code", "kept"), [(200, 2, "tg_own"), (403, 0, "tg_new"), (401, 0, "tg_new")])
def test_enrolment_of_a_host_replaces_no_login_of_a_person(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, code: int, kept: str
) -> None:
    monkeypatch.delenv("TIDEGATE_KEY")
    url = httpserver.url_for("").rstrip("/")
    save(Config(api_url=url, key="tg_own"))
    httpserver.expect_request("/v1/me").respond_with_json({"scopes": ["read"], "code": "no", "detail": "no"}, status)
    made = {"project_id": "p", "agent_id": "h-1", "key_id": "k", "key": "tg_new"}
    httpserver.expect_request("/v1/agents/enrol", method="POST").respond_with_json(made, 201)

    assert main(["agent", "enrol", "--url", url, "--token", "tge_x", "--agent-id", "h-1"]) == code

    assert load().key == kept


def test_next_command_of_an_enrolled_host_names_its_profile(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIDEGATE_KEY")
    url = httpserver.url_for("").rstrip("/")
    made = {"project_id": "p", "agent_id": "h-1", "key_id": "k", "key": "tg_new"}
    httpserver.expect_request("/v1/agents/enrol", method="POST").respond_with_json(made, 201)

    assert main(["--profile", "host", "agent", "enrol", "--url", url, "--token", "tge_x", "--agent-id", "h-1"]) == 0

    assert "next: tidegate --profile host agent install --agent-id h-1" in "".join(capsys.readouterr())


@pytest.mark.parametrize("address", ["127.0.0.1:4566/tidegate", "tidegate.example", "ftp://x", "https://", ""])
def test_address_without_a_scheme_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="starts with https://"):
        Client(address, "k")


def test_redirect_error_names_the_new_address(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/files").respond_with_data(
        b"", 301, {"Location": "https://tidegate.example/v1/files"}
    )

    with pytest.raises(BadAnswer, match=r"redirects to https://tidegate\.example"):
        Client(httpserver.url_for(""), "k").files.list()


@pytest.mark.parametrize("body", ["[]", "null", "{}", '"ok"', '{"items": 3}'])
def test_answer_of_another_shape_exits_6(httpserver: HTTPServer, body: str) -> None:
    httpserver.expect_request("/v1/files").respond_with_data(body, content_type="application/json")

    assert main(["file", "list"]) == 6


def test_api_is_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(lambda handler: handler.answer(200, b'{"items": []}')) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")

        monkeypatch.setenv("TIDEGATE_ALLOW_HTTP", "1")
        assert Client("http://tidegate.internal.example", "k", attempts=0).files.list().items == []


def test_file_name_that_is_not_utf8_is_refused_with_its_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad-\xff.bin")
    (tmp_path / name).write_bytes(b"x")
    client = Client(os.environ["TIDEGATE_API_URL"], "k")

    with pytest.raises(UsageError, match=r"bad-.*is not valid UTF-8"):
        client.files.put(tmp_path / name, biz_id=1, app_id=1, file_path="/a")
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        client.files.get(name)


@pytest.mark.parametrize(("content", "code"), [(b'\xef\xbb\xbf[{"a": 1}]', 0), (b'[{"a": "\xe9"}]', 2), (b"[{", 2)])
def test_rows_with_bom_are_read_and_other_encodings_refused(
    httpserver: HTTPServer, tmp_path: Path, content: bytes, code: int
) -> None:
    httpserver.expect_request("/v1/task", "POST").respond_with_json({"task_id": "t"}, 202)
    (tmp_path / "rows.json").write_bytes(content)

    assert main(["export", "submit", "--name", "nn", "--data", "rows.json"]) == code


def test_missing_output_folder_is_reported_before_the_export_is_submitted(
    httpserver: HTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.json").write_text("[]")

    words = ["export", "submit", "--name", "nn", "--data", "rows.json", "--watch", "-o", "no/such/rows.csv"]
    assert main(words) == 2

    assert "the folder no/such does not exist" in capsys.readouterr().err
    assert httpserver.log == []
