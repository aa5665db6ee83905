"""agent install, uninstall, status and doctor, and the options of the agent."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, ME, AgentApi, Store
from tidegate_client.agent import releases
from tidegate_client.agent import service as systemd
from tidegate_client.agent.service import HEALTH_FILE
from tidegate_client.agent.update import create_key
from tidegate_client.cli import main
from tidegate_client.cli.commands import agent, agent_service
from tidegate_client.cli.output import JsonLines
from tidegate_client.config import Config
from tidegate_client.errors import ConfigError
from tidegate_client.http import make_pool
from tidegate_client.rates import JobLimits, RateLimit, parse_rate

CONTENT = os.urandom(300_000)


@pytest.fixture(autouse=True)
def home(api: AgentApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_API_URL", api.url)
    monkeypatch.setenv("TIDEGATE_KEY", 'k"1$')
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Unit files in a temporary folder, and a fake systemctl whose calls are returned."""
    monkeypatch.setattr(systemd, "UNIT_DIR", tmp_path / "units")
    monkeypatch.setattr(systemd, "ENVIRONMENT_DIR", tmp_path / "env")
    monkeypatch.setattr(systemd, "STATE_BASE", tmp_path / "lib")
    called: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append([Path(command[0]).name, *command[1:]])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("tidegate_client.cli.commands.agent_service.subprocess.run", run)
    monkeypatch.setattr("tidegate_client.cli.commands.agent_service.shutil.which", lambda name: f"/usr/bin/{name}")
    return called


def test_printed_unit_is_valid_and_hardened(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    (root / "srv").mkdir()
    words = ["agent", "install", "--print", "--agent-id", "host 1%$", "--root", str(root), "--allow-dir", "/srv"]

    assert main([*words, "--limit-rate", "10M", "--allow-user", "web"]) == 0

    unit = capsys.readouterr().out
    assert f"ReadWritePaths={root}/srv" in unit
    assert '--agent-id "host 1%%$$"' in unit
    assert "--limit-rate 10485760" in unit
    assert "StartLimitIntervalSec=0" in unit, "systemd never gives up starting it"
    assert "k" + '"1' not in unit, "every user can read a unit, so it must not contain the key"
    if shutil.which("systemd-analyze"):
        path = tmp_path / "tidegate-agent.service"
        path.write_text(unit)
        done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_unit_of_a_swarm_names_each_option_once(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    swarm = ["--peer-listen", "10.0.0.1:7471", "--site", "dc1", "--zone", "rack-7", "--peer-upload-rate", "50M"]

    assert main(["agent", "install", "--print", "--agent-id", "host-1", "--root", str(root), *swarm]) == 0

    (started,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart=")]
    options = [word for word in started.split() if word.startswith("--")]
    assert sorted(set(options)) == sorted(options)
    assert {"--peer-listen", "--site", "--zone", "--peer-upload-rate"} <= set(options)
    assert "--zone rack-7" in started


# A value for each option of the agent. These do not come back as they were given: the service has a directory of its
# own for its state and its release key, and a proxy belongs into its environment.
GIVEN = {
    "--agent-id": "host-1",
    "--allow-dir": "/srv",
    "--allow-user": "web",
    "--parallel": "7",
    "--limit-rate": "1000",
    "--peer-listen": "10.0.0.1:7471",
    "--site": "dc1",
    "--zone": "rack-7",
    "--peer-upload-rate": "2000",
    "--metrics": "127.0.0.1:9000",
    "--log-format": "json",
    "--also": "second",
    "--self-update": None,
    "--allow-downgrade": None,
    "--allow-check": "8080",
    "--check-rate": "3000",
    "--no-push": None,
    "--wait": "5",
    "--drain-seconds": "12",
}
OTHERWISE = {
    "-h",
    "--help",
    "--root",
    "--container-root",
    "--allow-hook",
    "--state-dir",
    "--release-key",
    "--proxy",
    "--no-peers",
}


def test_installed_service_has_every_option_that_was_given(
    capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser()
    agent._add_options(parser)
    known = {name for action in parser._actions for name in action.option_strings}
    assert known == set(GIVEN) | OTHERWISE
    (root / "srv").mkdir()
    hook, key = tmp_path / "reload", tmp_path / "release.key"
    monkeypatch.setattr(releases, "require_private", lambda *_: None)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    create_key(key)
    monkeypatch.setattr(agent_service, "further_login", lambda _: Config(api_url="https://b.example", key="tg_x_y"))
    given = {**GIVEN, "--container-root": str(root), "--allow-hook": f"reload=web:{hook}"}
    words = [word for pair in given.items() for word in pair if word is not None]
    words += ["--root", str(root), "--release-key", f"{key}.pub"]
    words += ["--allow-dir", "second=/srv", "--allow-user", "second=web"]

    assert main(["agent", "install", "--print", *words]) == 0

    (started,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart=")]
    lost = [name for name, value in given.items() if f" {name} {value or ''}".rstrip() not in started]
    assert lost == []


def test_service_may_change_its_user_only_for_a_hook_that_has_one(
    capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "require_private", lambda *_: None)
    hook = tmp_path / "reload"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)

    def unit(user: str) -> str:
        words = ["--agent-id", "host-1", "--root", str(root), "--allow-hook", f"reload={user}{hook}"]
        assert main(["agent", "install", "--print", *words]) == 0
        return capsys.readouterr().out

    assert "CAP_SETUID" not in unit("")
    assert "SystemCallFilter=@setuid" not in unit("")
    assert "CAP_SETUID CAP_SETGID CAP_KILL\n" in unit("web:")
    assert "SystemCallFilter=@chown @setuid\n" in unit("web:")


def test_enrolment_for_the_service_of_the_package_stores_key_and_id(
    system: list[list[str]], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(handler: Handler) -> None:
        handler.answer(
            201, json.dumps({"project_id": "p", "agent_id": "web-7", "key_id": "k", "key": "tg_new"}).encode()
        )

    with serve(answer) as port:
        url = f"http://127.0.0.1:{port}"
        assert main(["agent", "enrol", "--service", "--url", url, "--token", "tge_x", "--agent-id", "web-7"]) == 0

    stored = tmp_path / "env/tidegate-agent.env"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    lines = dict(line.split("=", 1) for line in stored.read_text().splitlines())
    wanted = {"TIDEGATE_API_URL": url, "TIDEGATE_KEY": "tg_new", "TIDEGATE_AGENT_ID": "web-7"}
    assert {name: lines[name].strip('"') for name in wanted} == wanted
    # The service is started without --agent-id.
    monkeypatch.setenv("TIDEGATE_AGENT_ID", "web-7")
    assert main(["agent", "install", "--root", str(root), "--allow-dir", "/"]) == 0
    assert "--agent-id web-7" in (tmp_path / "units/tidegate-agent.service").read_text()


def test_install_hides_the_key_and_starts_the_service(system: list[list[str]], root: Path, tmp_path: Path) -> None:
    assert main(["agent", "install", "--agent-id", AGENT, "--root", str(root)]) == 0

    secret = tmp_path / "env/tidegate-agent.env"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert 'TIDEGATE_KEY="k\\"1$"' in secret.read_text()
    assert f"--root {root}" in (tmp_path / "units/tidegate-agent.service").read_text()
    assert [words[1] for words in system] == ["daemon-reload", "enable", "restart"]


def test_installed_service_keeps_the_wait_and_the_lower_case_proxies(
    system: list[list[str]], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "internal.example")

    assert main(["agent", "install", "--agent-id", AGENT, "--root", str(root), "--wait", "20"]) == 0

    environment = (tmp_path / "env/tidegate-agent.env").read_text()
    assert 'HTTPS_PROXY="http://proxy.example:3128"' in environment
    assert 'NO_PROXY="internal.example"' in environment
    assert "--wait 20" in (tmp_path / "units/tidegate-agent.service").read_text()


def test_uninstall_keeps_key_and_journal_without_purge(system: list[list[str]], root: Path, tmp_path: Path) -> None:
    main(["agent", "install", "--agent-id", AGENT, "--root", str(root), "--no-start"])
    assert system == []
    assert main(["agent", "uninstall"]) == 0
    assert not (tmp_path / "units/tidegate-agent.service").exists()
    assert (tmp_path / "env/tidegate-agent.env").exists()
    assert ["systemctl", "disable", "--now", "tidegate-agent.service"] in system
    assert main(["agent", "uninstall"]) == 2

    main(["agent", "install", "--agent-id", AGENT, "--root", str(root), "--no-start"])
    assert main(["agent", "uninstall", "--purge"]) == 0
    assert not (tmp_path / "env/tidegate-agent.env").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--root", "/"],
        ["--root", "/", "--allow-dir", "srv"],
        ["--root", "/", "--allow-dir", "/srv/../etc"],
        ["--root", "/", "--allow-dir", "/no-such-directory"],
        ["--root", "/no-such-directory"],
        ["--root", "/", "--allow-dir", "/", "--name", "../evil"],
        [],
    ],
)
def test_install_refuses_unsafe_or_missing_directories(
    system: list[list[str]], tmp_path: Path, words: list[str]
) -> None:
    assert main(["agent", "install", "--agent-id", AGENT, *words]) == 2
    assert not (tmp_path / "units").exists()
    assert system == []


def test_status_shows_healthy_stopped_and_unhealthy_agents(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health = {"agent_id": AGENT, "pid": os.getpid(), "time": time.time(), "healthy": True, "problems": []}
    health |= {"active": 0, "untold_results": 0, "partial_bytes": 0, "free_bytes": 1, "last_poll_seconds": 1}
    state = home / "state"
    state.mkdir()
    codes = []
    for change in (
        {},
        {"time": time.time() - 100},
        {"pid": 2**22 + 1},
        {"healthy": False, "problems": ["x has ended"]},
    ):
        (state / HEALTH_FILE).write_text(json.dumps(health | change))
        codes.append(main(["--json", "agent", "status", "--state-dir", str(state)]))
        codes.append(json.loads(capsys.readouterr().out)["items"][0]["state"])

    assert codes == [0, "healthy", 1, "unhealthy", 1, "stopped", 1, "unhealthy"]
    assert main(["agent", "status", "--state-dir", str(home / "nothing")]) == 2


def test_doctor_finds_what_prevents_deliveries(
    api: AgentApi, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--json", "agent", "doctor", "--agent-id", AGENT, "--root", str(root), "--allow-user", ME]
    assert main(words) == 0
    assert {row["result"] for row in json.loads(capsys.readouterr().out)["items"]} == {"ok"}

    api.key_status = 401
    assert main([*words, "--allow-dir", "/missing", "--allow-user", "no-such-user"]) == 1
    rows = json.loads(capsys.readouterr().out)["items"]
    assert {row["check"] for row in rows if row["result"] == "FAILED"} == {"API", "allowed directory", "owners"}


def test_options_work_before_and_after_the_subcommand(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--root", str(root), "install"], ["install", "--root", str(root)]):
        assert main(["agent", "--agent-id", AGENT, *words, "--print", "--parallel", "7"]) == 0
        assert "--parallel 7" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "rate"), [("500", 500), ("500k", 512_000), ("10M", 10 * 1024**2), ("1G", 1024**3)])
def test_rates_are_parsed_as_curl_does(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "M", "10X", "1.5M", "10MB"])
def test_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


def test_rate_limit_is_shared_and_saves_no_unused_time() -> None:
    now = [0.0]
    limit = RateLimit(1000, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(10):
        limit.take(500)
    assert now[0] == pytest.approx(5.0)
    now[0] += 100
    limit.take(1000)
    assert now[0] == pytest.approx(106.0), "unused time is not saved up"


def test_agent_with_a_limit_is_not_faster_than_it(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    began = time.monotonic()
    transfers = [api.add(f"f{number}", CONTENT[: 100_000 + number]) for number in range(3)]
    start_agent(limit_rate=150_000)
    for transfer in transfers:
        assert api.wait_for(transfer)["error_code"] == 0
    assert time.monotonic() - began > 1.8


def test_limit_of_a_job_does_not_slow_down_others(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    began, idle_began = time.monotonic(), idle_clock()
    limited = [
        api.add(f"slow{number}", CONTENT[: 100_000 + number], job_id="j-1", limit_rate=150_000) for number in range(2)
    ]
    free = api.add("fast", CONTENT, job_id="j-2")
    start_agent(limit_rate=10_000_000)

    assert api.wait_for(free)["error_code"] == 0
    assert idle_clock() - idle_began < 1.0
    for transfer in limited:
        assert api.wait_for(transfer)["error_code"] == 0
    assert time.monotonic() - began > 1.1, "both share the Job's limit"


def test_stricter_of_two_limits_decides() -> None:
    own = RateLimit(1000, clock=lambda: 0.0)
    limits = JobLimits(own)
    assert limits.limit_for("j-1", None) is own

    generous, strict = limits.limit_for("j-1", 5000), limits.limit_for("j-2", 100)

    assert generous
    assert strict
    assert (generous.bytes_a_second, strict.bytes_a_second) == (1000, 100)
    assert generous.reserve(1000) == pytest.approx(1.0)
    assert strict.reserve(1000) == pytest.approx(10.0, abs=0.1)


def test_files_are_downloaded_through_the_proxy(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    """Only the proxy can resolve the store's name."""
    asked: list[str] = []

    def proxy(handler: Handler) -> None:
        asked.append(handler.path)
        assert handler.headers["Proxy-Authorization"].startswith("Basic ")
        handler.answer(200, CONTENT)

    with serve(proxy) as port:
        transfer = api.add("f", CONTENT)
        api.store.url = "http://files.internal.example"
        start_agent(proxy=f"http://user:p%40ss@127.0.0.1:{port}")
        assert api.wait_for(transfer)["error_code"] == 0

    assert asked[0].startswith("http://files.internal.example/f?")
    assert (root / "data/f").read_bytes() == CONTENT


def test_proxy_and_its_exceptions_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serve(lambda handler: handler.answer(200, b"proxied")) as port,
        serve(lambda handler: handler.answer(200, b"direct")) as direct,
    ):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "skipped.example")
        pool = make_pool()
        assert pool.request("GET", "http://one.example/").data == b"proxied"
        assert pool.request("GET", f"http://127.0.0.1:{direct}/").data == b"direct"
        resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *more: resolve("127.0.0.1", *more))
        assert pool.request("GET", f"http://skipped.example:{direct}/").data == b"direct"


def test_unsupported_proxy_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a proxy"):
        make_pool("socks5://127.0.0.1:1")


def test_json_log_line_contains_the_traceback() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "it %s", ("failed",), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it failed"
    assert "ValueError: broken" in json.loads(line)["error"]


def test_install_pins_the_release_key_in_a_file_of_root(
    system: list[list[str]], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = create_key(tmp_path / "release.key")
    words = ["agent", "install", "--agent-id", AGENT, "--root", str(root), "--self-update"]

    assert main(words) == 2
    assert "--release-key" in capsys.readouterr().err
    assert main([*words, "--release-key", str(tmp_path / "release.key")]) != 0, "that is the private key"
    assert main([*words, "--release-key", str(public), "--allow-downgrade"]) == 0

    (pinned,) = tmp_path.rglob("tidegate-agent.release-key")
    assert pinned.stat().st_mode & 0o777 == 0o600
    assert pinned.read_bytes() == public.read_bytes()
    unit = next(tmp_path.rglob("tidegate-agent.service")).read_text()
    assert f"--self-update --release-key {pinned} --allow-downgrade" in unit
    assert main(["agent", "uninstall", "--purge"]) == 0
    assert not pinned.exists()


def test_doctor_says_whether_releases_can_be_verified(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = create_key(tmp_path / "release.key")
    words = ["--json", "agent", "doctor", "--agent-id", AGENT, "--root", str(root), "--allow-user", ME, "--self-update"]

    assert main([*words, "--release-key", str(public)]) == 0
    capsys.readouterr()
    public.chmod(0o666)
    assert main([*words, "--release-key", str(public)]) == 1

    rows = json.loads(capsys.readouterr().out)["items"]
    assert [row["check"] for row in rows if row["result"] == "FAILED"] == ["self-update"]


def test_doctor_and_install_say_that_the_peer_port_needs_the_extra(
    system: list[list[str]],
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--agent-id", AGENT, "--root", str(root), "--allow-user", ME, "--peer-listen", "10.1.2.3:7471"]
    found = []
    for missing in (False, True):
        if missing:
            monkeypatch.setitem(sys.modules, "cryptography.x509", None)
        code = main(["--json", "agent", "doctor", *words])
        rows = json.loads(capsys.readouterr().out)["items"]
        (row,) = (row for row in rows if row["check"] == "peer port")
        assert main(["agent", "install", *words]) == 0
        advice = "pip install 'tidegate-client[swarm]'"
        found.append((code, row["result"], advice in row["detail"], advice in capsys.readouterr().err))

    assert found == [(0, "ok", False, False), (1, "FAILED", True, True)]
    assert "--peer-listen 10.1.2.3:7471" in (tmp_path / "units/tidegate-agent.service").read_text()


def test_status_shows_what_an_agent_warns_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health = {"agent_id": AGENT, "pid": os.getpid(), "time": time.time(), "healthy": True, "problems": []}
    health |= {"warnings": ["no peer port"]}
    (home / HEALTH_FILE).write_text(json.dumps(health))

    assert main(["agent", "status", "--state-dir", str(home)]) == 0

    assert "no peer port" in capsys.readouterr().out
