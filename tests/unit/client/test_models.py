"""Models, pages, errors with request ids, profiles, and the options and completion of the command."""

from __future__ import annotations

import asyncio
import json
import pydoc
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from local import async_stub, sdk_models
from tests.support.http_servers import Handler, serve
from tidegate_client import config, models
from tidegate_client.async_client import AsyncClient
from tidegate_client.cli import build_parser, main
from tidegate_client.cli.completion import words_of
from tidegate_client.client import Client
from tidegate_client.errors import ApiError, NotFound, RateLimited
from tidegate_client.models import Batch, Export, Job, Preview, Request

PAGES = {"": {"items": [{"file_id": "1"}, {"file_id": "2"}], "next_cursor": "n"}, "n": {"items": [{"file_id": "3"}]}}


def answer(handler: Handler) -> None:
    if handler.path.startswith("/v1/files?") or handler.path == "/v1/files":
        found = PAGES["n" if "cursor=n" in handler.path else ""]
        handler.answer(200, json.dumps(found).encode())
    elif "limited" in handler.path:
        handler.answer(429, b'{"code": "rate_limited", "detail": "slow"}', Retry_After="7", Apigw_Requestid="call-1")
    elif "/requests/" in handler.path:
        body = {"request_id": "req-1", "status": "completed", "progress": {"bytes": 5, "total": 9}}
        handler.answer(200, json.dumps(body).encode(), Apigw_Requestid="call-2")
    else:
        handler.answer(404, b'{"code": "not_found", "detail": "no"}', Apigw_Requestid="gate-3", X_Request_Id="call-3")


@pytest.fixture
def url() -> Any:
    with serve(answer) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TIDEGATE_API_URL", "TIDEGATE_KEY", "TIDEGATE_PROFILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_fields_are_attributes_and_nested_ones_are_models() -> None:
    export = Export({"task_id": "exp-1", "status": "completed", "progress": {"rows": 3}, "new": {"later": 1}})

    assert (export.status, export.progress.rows, export.progress.total, export.size) == ("completed", 3, None, None)
    assert export["status"] == "completed"
    assert export["new"]["later"] == 1
    assert Request({"error": {"code": "x"}}).error.code == "x"  # type: ignore[union-attr]
    assert Preview({"items": [{"url": "u"}]}).items_[0].url == "u"
    with pytest.raises(AttributeError):
        export.no_such_field  # type: ignore[attr-defined]  # noqa: B018


def test_shapes_and_pages_are_imported_from_the_models_as_in_1_1() -> None:
    former = """FileOptions GseGrant Json Model Page Politeness Presence Quotas Selection SubscriptionChanges
        SubscriptionOptions SwarmFigures Target Transfer TransferResult Wave"""
    assert [name for name in former.split() if not hasattr(models, name)] == []


def test_declared_field_that_is_absent_is_none_and_nested_records_are_shaped() -> None:
    running = Batch({"batch_id": "b", "status": "running", "source": {"file_id": "f"}, "from_a_newer_server": 1})
    failed = Job({"error": {"code": "wave_failed"}, "waves": [{"percent": 1}], "speed": {"mean": 5}})

    assert (running.finish_time, running.total, running.stop_reason) == (None, None, None)
    assert (running.source and running.source.file_id, running["from_a_newer_server"]) == ("f", 1)
    assert failed.error is not None
    assert failed.waves is not None
    assert failed.speed is not None
    assert (failed.error.code, failed.waves[0].percent, failed.waves[0].targets, failed.speed.mean) == (
        "wave_failed",
        1,
        None,
        5,
    )
    with pytest.raises(AttributeError, match="Job has no field error_msg"):
        failed.error_msg  # type: ignore[attr-defined]  # noqa: B018


def test_iterating_over_a_page_reads_all_pages(url: str) -> None:
    page = Client(url, "k").files.list()

    assert (len(page), page.next_cursor) == (2, "n")
    assert [file.file_id for file in page] == ["1", "2", "3"]


def test_errors_have_request_id_and_retry_after(url: str) -> None:
    client = Client(url, "k", attempts=0)

    with pytest.raises(RateLimited) as limited:
        client.http.get("/v1/limited")
    assert (limited.value.request_id, limited.value.retry_after) == ("call-1", 7.0)
    with pytest.raises(NotFound) as missing:
        client.jobs.get("j")
    assert missing.value.request_id == "call-3"


def test_async_client_awaits_calls_and_reads_all_pages(url: str) -> None:
    async def use() -> list[str]:
        async with AsyncClient(url, "k") as client:
            request = await client.requests.get("req-1")
            done = await client.wait("req-1", timeout=5)
            assert (request.status, done.succeeded) == ("completed", True)
            with pytest.raises(ApiError):
                await client.jobs.get("j")
            return [file.file_id async for file in client.all(client.files.list())]

    assert asyncio.run(use()) == ["1", "2", "3"]


def test_async_page_iterates_over_all_pages(url: str) -> None:
    async def use() -> list[str]:
        async with AsyncClient(url, "k") as client:
            page = await client.files.list()
            assert (len(page), page.next_cursor) == (2, "n")
            return [file.file_id async for file in page]

    assert asyncio.run(use()) == ["1", "2", "3"]


def test_help_of_both_clients_shows_the_methods_of_resources() -> None:
    for client in (Client("http://127.0.0.1", "k"), AsyncClient("http://127.0.0.1", "k")):
        # Python 3.13 puts the parameters of a long signature on lines of their own.
        shown = re.sub(r"[\s|]+", " ", pydoc.plain(pydoc.render_doc(client.subscriptions))).replace("( self", "(self")
        assert "preview(self, source_url: 'str', **options: 'Unpack[PreviewOptions]') -> 'Preview'" in shown
        assert "Lists the files that a source offers" in shown
    assert "`subscriptions`, `credentials`" in pydoc.plain(pydoc.render_doc(Client))


def test_stub_of_the_async_client_is_current() -> None:
    assert async_stub.STUB.read_text() == async_stub.text(), "run python -m local.async_stub"


def test_models_are_current_with_the_openapi_document() -> None:
    assert sdk_models.MODELS.read_text() == sdk_models.text(), "run python -m local.sdk_models write"


def test_generator_names_the_nested_record_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sdk_models.RECORDS, "JobSpeed")
    sdk_models._names.cache_clear()
    try:
        with pytest.raises(KeyError, match=r"name the record of Job\.speed"):
            sdk_models.text()
    finally:
        sdk_models._names.cache_clear()


def test_profiles_are_separate_and_logout_removes_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for profile in ([], ["--profile", "staging"]):
        assert main(["login", "--api-url", url, "--key", "k" + "".join(profile)[-3:], *profile]) == 0
    assert Client(profile="staging").http.api_url == url
    assert (config.load().key, config.load(profile="staging").key) == ("k", "king")
    assert config.config_path().stat().st_mode & 0o777 == 0o600

    assert main(["logout", "--profile", "staging"]) == 0
    assert config.load().key == "k", "the other profile stays"
    assert main(["logout"]) == 0
    assert main(["logout"]) == 2
    assert main(["--profile", "gone", "request", "show", "r"]) == 3
    assert "no profile gone" in capsys.readouterr().err


def test_login_keeps_a_damaged_file_aside(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = config.config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    damaged = '{"profiles": {"production": {"key": "the only copy"}},'
    path.write_text(damaged)
    assert main(["request", "show", "r"]) == 3
    assert "renames it" in capsys.readouterr().err

    assert main(["login", "--api-url", url, "--key", "k"]) == 0

    assert config.load().key == "k"
    assert [file.read_text() for file in path.parent.glob(f"{path.name}.unreadable-*")] == [damaged]


def test_logout_names_the_profile_of_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["login", "--api-url", url, "--key", "k", "--profile", "staging"])
    monkeypatch.setenv("TIDEGATE_PROFILE", "staging")
    capsys.readouterr()

    assert main(["logout", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"logged_out": "staging"}


def test_fields_option_selects_and_debug_prints_calls(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_API_URL", url)
    monkeypatch.setenv("TIDEGATE_KEY", "very-secret")

    assert main(["--json", "--fields", "status,progress.bytes", "--debug", "request", "show", "req-1"]) == 0

    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"status": "completed", "progress.bytes": 5}
    assert "GET /v1/requests/req-1 → 200" in shown.err
    assert "call-2" in shown.err
    assert "very-secret" not in shown.err


def test_former_command_names_work_and_are_hidden() -> None:
    parser = build_parser()
    words = dict(words_of(parser))

    assert {"distribute", "ingest"} <= set(words[""])
    assert "download" not in words[""]
    assert "ingest" not in words["file"]
    assert parser.parse_args(["download", "list"]).run is parser.parse_args(["distribute", "list"]).run
    where = ["u", "--biz-id", "1", "--app-id", "2", "--file-path", "/p"]
    assert parser.parse_args(["file", "ingest", *where]).run is parser.parse_args(["ingest", *where]).run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_has_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "subscription" in script
    assert "fields" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tidegate", "fi"], {"file"}),
        (["tidegate", "file", "p"], {"put"}),
        (["tidegate", "--json", "subscription", "pr"], {"preview"}),
        (["tidegate", "ingest", "--file-p"], {"--file-path"}),
        (["tidegate", "downl"], set()),
    ],
)
def test_bash_completes_the_next_word(words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    line = " ".join(map(shlex.quote, words))
    asks = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _tidegate; printf "%s\\n" "${{COMPREPLY[@]}}"'

    done = subprocess.run(["bash", "-c", f"{script}\n{asks}"], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) == expected
