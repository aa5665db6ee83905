"""A Job delivers a new version of the agent: it runs, or is rolled back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, AgentApi, sha256
from tidegate_client.agent import releases as releases_module
from tidegate_client.agent.codes import Code
from tidegate_client.agent.releases import UPDATE_DIR, Releases, run_trial

PACKAGE = Path(releases_module.__file__).parents[1]
Launch = Callable[[], "subprocess.Popen[bytes]"]


def wheel(**changed: str) -> bytes:
    """A wheel of this agent with some modules replaced."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(PACKAGE.rglob("*.py")):
            name = f"tidegate_client/{path.relative_to(PACKAGE)}"
            archive.writestr(name, changed.get(path.stem, path.read_text()))
    return packed.getvalue()


@pytest.fixture(scope="module")
def good() -> bytes:
    return wheel(version="def version() -> str:\n    return 'new'\n")


@pytest.fixture(scope="module")
def broken() -> bytes:
    return wheel(daemon="raise RuntimeError('this release is broken')\n")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def launch(api: AgentApi, root: Path, state: Path, tmp_path: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        words = ["--agent-id", AGENT, "--root", str(root), "--state-dir", str(state), "--self-update", "--no-push"]
        environment = os.environ | {"TIDEGATE_API_URL": api.url, "TIDEGATE_KEY": "k", "XDG_CONFIG_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "tidegate_client", "agent", *words, "--wait", "1"]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_new_version_runs_with_the_same_pid_and_reports_success(
    api: AgentApi, state: Path, root: Path, launch: Launch, good: bytes
) -> None:
    process = launch()
    update = api.add("agent.whl", good, directory=UPDATE_DIR, sequence=7)

    assert api.wait_for(update)["error_code"] == 0
    assert Releases(state).current() == sha256(good)
    assert Releases(state).on_trial() is None
    file = api.add("after", b"by the new version", sequence=8)
    assert api.wait_for(file)["error_code"] == 0
    assert process.poll() is None
    assert b"TIDEGATE_RELEASE=" + sha256(good).encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert not (root / ".tidegate").exists()


def test_version_that_fails_to_start_is_rolled_back_and_reported(
    api: AgentApi, state: Path, launch: Launch, broken: bytes
) -> None:
    process = launch()
    update = api.add("agent.whl", broken, directory=UPDATE_DIR, sequence=7)

    result = api.wait_for(update)

    assert result["error_code"] == Code.UPDATE_FAILED
    assert "before it reached the API" in result["error_msg"]
    assert Releases(state).current() is None
    file = api.add("after", b"by the old version", sequence=8)
    assert api.wait_for(file)["error_code"] == 0
    assert process.poll() is None


def test_hanging_version_is_killed_and_rolled_back(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    releases.directory.mkdir()
    content = wheel(__main__="import time\ntime.sleep(60)\n")
    releases.file(sha256(content)).write_bytes(content)
    releases.switch(sha256(content))
    alive: list[float] = []

    run_trial(releases, sha256(content), ["agent"], lambda: alive.append(time.monotonic()), seconds=0.5)

    assert releases.current() is None
    assert "within" in (releases.why_refused(sha256(content)) or "")
    assert alive, "the watchdog is notified meanwhile"


def test_sigterm_during_a_trial_ends_the_new_version_too(launch: Launch, state: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    content = wheel(__main__=code)
    releases = Releases(state)
    releases.directory.mkdir(parents=True)
    releases.file(sha256(content)).write_bytes(content)
    releases.switch(sha256(content))
    process = launch()
    deadline = time.monotonic() + 20
    while not started.exists() or not started.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)

    process.terminate()

    assert process.wait(20) == 143
    assert not Path(f"/proc/{started.read_text()}").exists()


def test_roll_back_returns_to_the_previous_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: bytes
) -> None:
    releases = Releases(tmp_path)
    releases.directory.mkdir()
    for content in (good, other := wheel(version="def version() -> str:\n    return 'newer'\n")):
        releases.file(sha256(content)).write_bytes(content)
    releases.switch(sha256(good))
    monkeypatch.setenv("TIDEGATE_RELEASE", sha256(good))
    releases.confirm()
    assert releases.on_trial() is None

    releases.switch(sha256(other))
    assert releases.on_trial() == sha256(other)
    releases.confirm()
    assert releases.on_trial() == sha256(other), "only the new version can confirm itself"
    releases.roll_back("it did not come up")

    assert releases.current() == sha256(good)
    assert releases.on_trial() is None


def test_older_version_is_refused(api: AgentApi, state: Path, launch: Launch, good: bytes) -> None:
    launch()
    newer = api.add("agent.whl", good, directory=UPDATE_DIR, sequence=9)
    assert api.wait_for(newer)["error_code"] == 0

    older = api.add("old.whl", wheel(version="VERSION = 'old'\n"), directory=UPDATE_DIR, sequence=3)

    assert api.wait_for(older)["error_code"] == Code.SUPERSEDED
    assert Releases(state).current() == sha256(good)


def test_file_that_is_no_release_is_refused_and_removed(api: AgentApi, state: Path, start_agent: StartAgent) -> None:
    start_agent(self_update=True)
    update = api.add("agent.whl", b"not a wheel", directory=UPDATE_DIR, sequence=1)

    assert api.wait_for(update)["error_code"] == Code.UPDATE_FAILED
    assert list((state / "releases").glob("*.whl")) == []


def test_agent_without_self_update_refuses_a_release(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    start_agent()
    update = api.add("agent.whl", b"code", directory=UPDATE_DIR + "/", sequence=1)

    assert api.wait_for(update)["error_code"] == Code.PATH_REFUSED
    assert list(root.iterdir()) == []
