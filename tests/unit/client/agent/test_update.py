"""A Job delivers a signed new version of the agent: it runs, or is refused, or is rolled back."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.patience import ended, idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, AgentApi, sha256
from tidegate_client.agent import update as releases_module
from tidegate_client.agent.codes import Code
from tidegate_client.agent.update import (
    FORMAT,
    UPDATE_DIR,
    Releases,
    SigningError,
    create_key,
    read_keys,
    run_trial,
    sign,
    version,
    version_key,
)
from tidegate_client.cli import main

PACKAGE = Path(releases_module.__file__).parents[1]
Launch = Callable[..., "subprocess.Popen[bytes]"]
NEWER = "9.0.0"


def wheel(
    number: str = NEWER, name: str = "tidegate-client", extra: str = "Provides-Extra: update\n", **changed: str
) -> bytes:
    """A wheel of this agent with this version and some modules replaced."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(PACKAGE.rglob("*.py")):
            file = f"tidegate_client/{path.relative_to(PACKAGE)}"
            archive.writestr(file, changed.get(path.stem, path.read_text()))
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{extra}"
        archive.writestr(f"tidegate_client-{number}.dist-info/METADATA", metadata)
    return packed.getvalue()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private key; the public one is beside it."""
    path = tmp_path_factory.mktemp("keys") / "release.key"
    create_key(path)
    return path


Signed = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def signed(key: Path) -> Signed:
    return lambda content: sign(content, key.read_bytes())[1]


@pytest.fixture(scope="module")
def good(signed: Signed) -> bytes:
    return signed(wheel())


@pytest.fixture(scope="module")
def broken(signed: Signed) -> bytes:
    return signed(wheel(daemon="raise RuntimeError('this release is broken')\n"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def launch(api: AgentApi, root: Path, state: Path, tmp_path: Path, key: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str) -> subprocess.Popen[bytes]:
        words = ["--agent-id", AGENT, "--root", str(root), "--state-dir", str(state), "--self-update", "--no-push"]
        words += ["--release-key", f"{key}.pub", *more]
        environment = os.environ | {"TIDEGATE_API_URL": api.url, "TIDEGATE_KEY": "k", "XDG_CONFIG_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "tidegate_client", "agent", *words, "--wait", "1"]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        # With the new version on trial, which is a child.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
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
    deadline = idle_clock() + 20
    while not started.exists() or not started.read_text():
        assert idle_clock() < deadline
        time.sleep(0.02)

    process.terminate()

    assert ended(process) == 143
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


def test_release_of_an_older_window_is_refused(
    api: AgentApi, state: Path, launch: Launch, good: bytes, signed: Signed
) -> None:
    launch()
    newer = api.add("agent.whl", good, directory=UPDATE_DIR, sequence=9)
    assert api.wait_for(newer)["error_code"] == 0

    older = api.add("old.whl", signed(wheel("10.0.0")), directory=UPDATE_DIR, sequence=3)

    assert api.wait_for(older)["error_code"] == Code.SUPERSEDED
    assert Releases(state).current() == sha256(good)


def test_lower_version_is_refused_although_its_job_is_later(
    api: AgentApi, state: Path, launch: Launch, good: bytes, signed: Signed
) -> None:
    launch()
    assert api.wait_for(api.add("agent.whl", good, directory=UPDATE_DIR, sequence=1))["error_code"] == 0

    older = api.add("old.whl", signed(wheel("8.9.9")), directory=UPDATE_DIR, sequence=2)

    result = api.wait_for(older)
    assert result["error_code"] == Code.UPDATE_FAILED
    assert f"8.9.9 is lower than {NEWER}" in result["error_msg"]
    assert Releases(state).current() == sha256(good)


def test_lower_version_runs_where_downgrades_are_allowed(
    api: AgentApi, state: Path, launch: Launch, signed: Signed
) -> None:
    launch("--allow-downgrade")
    older = signed(wheel("0.1.0"))

    assert api.wait_for(api.add("old.whl", older, directory=UPDATE_DIR, sequence=2))["error_code"] == 0
    assert Releases(state).current() == sha256(older)


def test_version_that_runs_already_changes_nothing(api: AgentApi, state: Path, launch: Launch, signed: Signed) -> None:
    process = launch()
    same = api.add("same.whl", signed(wheel(version())), directory=UPDATE_DIR, sequence=2)

    assert api.wait_for(same)["error_code"] == 0
    assert Releases(state).current() is None
    assert list((state / "releases").iterdir()) == []
    assert process.poll() is None


@pytest.mark.parametrize(
    "content", [wheel("0.9.0"), wheel(extra=""), b"PK no wheel"], ids=["older", "same version", "no wheel"]
)
def test_installed_package_runs_if_it_is_newer_or_the_release_takes_anything(
    api: AgentApi, state: Path, launch: Launch, content: bytes
) -> None:
    releases = Releases(state)
    releases.directory.mkdir(parents=True)
    releases.add(sha256(content), content)
    (releases.directory / "current").symlink_to(f"{sha256(content)}.whl")

    process = launch()

    assert api.wait_for(api.add("after", b"by the installed package", sequence=8))["error_code"] == 0
    assert b"TIDEGATE_RELEASE=" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert releases.current() is None


def with_header_of(signed_release: bytes, other: bytes) -> bytes:
    return b"\n".join([*signed_release.split(b"\n", 3)[:3], other])


def statement_changed(signed_release: bytes, **fields: str) -> bytes:
    first, signature, line, rest = signed_release.split(b"\n", 3)
    return b"\n".join([first, signature, json.dumps(json.loads(line) | fields, sort_keys=True).encode(), rest])


def test_only_what_the_host_key_has_signed_is_installed(
    api: AgentApi, state: Path, launch: Launch, good: bytes, signed: Signed, tmp_path: Path
) -> None:
    process = launch()
    evil = wheel("9.9.9", daemon="raise SystemExit('evil')\n")
    create_key(tmp_path / "other.key")
    forged = base64.b64encode(bytes(64))
    first, signature, line, rest = good.split(b"\n", 3)
    bad = {
        "a wheel without a signature": (evil, "is not signed"),
        "text": (b"not a wheel", "is not signed"),
        "nothing": (b"", "is not signed"),
        "another key": (sign(evil, (tmp_path / "other.key").read_bytes())[1], "not by the release key"),
        "a signature of zeros": (b"\n".join([first, forged, line, rest]), "not by the release key"),
        "no base64": (b"\n".join([first, b"%%", line, rest]), "not base64"),
        "a short signature": (b"\n".join([first, signature[:40], line, rest]), "not by the release key"),
        "the signature of another file": (with_header_of(good, evil), "is for another file"),
        "another version": (statement_changed(good, version="99.0"), "not by the release key"),
        "another hash": (
            statement_changed(with_header_of(good, evil), sha256=hashlib.sha256(evil).hexdigest()),
            "not by the release key",
        ),
        "a truncated file": (good[:-1], "is for another file"),
        "half a file": (good[: len(good) // 2], "is for another file"),
        "a header alone": (with_header_of(good, b""), "is for another file"),
        "a longer file": (good + evil, "is for another file"),
        "lines without an end": (FORMAT + b"\n" + b"x" * 10_000, "is not signed"),
    }
    for number, (what, (content, why)) in enumerate(bad.items()):
        result = api.wait_for(api.add(f"{number}.whl", content, directory=UPDATE_DIR, sequence=number + 1))
        assert result["error_code"] == Code.UPDATE_FAILED, what
        assert why in result["error_msg"], what
        assert Releases(state).current() is None, what
        assert list((state / "releases").iterdir()) == [], what

    assert api.wait_for(api.add("good.whl", good, directory=UPDATE_DIR, sequence=99))["error_code"] == 0
    assert process.poll() is None


def test_signed_file_that_is_no_agent_cannot_be_signed_or_run(key: Path) -> None:
    for content in (b"not a wheel", wheel(name="other"), wheel("1.0-x"), wheel(extra="")):
        with pytest.raises(SigningError, match="cannot be released"):
            sign(content, key.read_bytes())


@pytest.mark.parametrize("reason", ["no library", "no key", "not a key", "shared file", "private key"])
def test_agent_that_cannot_verify_releases_says_so_and_is_off(
    api: AgentApi,
    state: Path,
    start_agent: StartAgent,
    good: bytes,
    key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    public: Path | None = tmp_path / "public"
    assert public is not None
    public.write_bytes(Path(f"{key}.pub").read_bytes())
    says = {
        "no library": "tidegate-client[update]",
        "no key": "--release-key",
        "shared file": "a user other than root may change",
    }
    if reason == "no library":
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    elif reason == "no key":
        public = None
    elif reason == "not a key":
        public.write_text("no key")
    elif reason == "private key":
        public.write_bytes(key.read_bytes())
    else:
        public.chmod(0o666)
    start_agent(self_update=True, release_key=public)

    result = api.wait_for(api.add("agent.whl", good, directory=UPDATE_DIR, sequence=1))

    assert result["error_code"] == Code.UPDATE_FAILED
    assert "self-update is off on this host" in result["error_msg"]
    assert says.get(reason, "has no Ed25519 public key") in result["error_msg"]
    assert Releases(state).current() is None


def test_key_in_a_directory_that_others_may_write_is_refused(tmp_path: Path, key: Path) -> None:
    open_to_all = tmp_path / "shared" / "keys"
    open_to_all.mkdir(parents=True)
    (open_to_all / "public").write_bytes(Path(f"{key}.pub").read_bytes())
    assert len(read_keys(open_to_all / "public")) == 1

    (tmp_path / "shared").chmod(0o777)

    with pytest.raises(SigningError, match="another user could sign releases"):
        read_keys(open_to_all / "public")


def test_two_keys_are_accepted_while_they_are_exchanged(api: AgentApi, state: Path, launch: Launch, key: Path) -> None:
    both, other = state.parent / "both.pub", state.parent / "next.key"
    both.write_bytes(Path(f"{key}.pub").read_bytes() + create_key(other).read_bytes())
    launch("--release-key", str(both))

    update = api.add("agent.whl", sign(wheel(), other.read_bytes())[1], directory=UPDATE_DIR, sequence=1)

    assert api.wait_for(update)["error_code"] == 0


def test_keys_and_releases_are_made_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "open sesame")
    path, file = tmp_path / "k", tmp_path / "agent.whl"
    file.write_bytes(content := wheel())

    assert main(["agent", "new-release-key", str(path), "--passphrase"]) == 0
    assert main(["agent", "sign-release", str(file), "--key", str(path)]) == 0

    assert path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in path.read_bytes()
    assert (tmp_path / "agent.whl.signed").read_bytes().endswith(content)
    assert NEWER in capsys.readouterr().out
    assert main(["agent", "new-release-key", str(path)]) != 0, "a key is never overwritten"
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "wrong")
    assert main(["agent", "sign-release", str(file), "--key", str(path)]) != 0


def test_versions_are_ordered_as_numbers_with_phases() -> None:
    ordered = ["0.9", "1.0a1", "1.0b1", "1.0rc1", "1.0rc2", "1", "1.0.post1", "1.0.1", "1.2", "1.10"]

    assert sorted(sorted(ordered), key=version_key) == ordered
    assert version_key("1") == version_key("1.0.0")
    for text in ("", "unknown", "1.x", "1..2", "-1", "1.0.dev3", "9" * 30):
        with pytest.raises(ValueError, match="is not a version"):
            version_key(text)


def test_agent_without_self_update_refuses_a_release(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    start_agent()
    update = api.add("agent.whl", b"code", directory=UPDATE_DIR + "/", sequence=1)

    assert api.wait_for(update)["error_code"] == Code.PATH_REFUSED
    assert list(root.iterdir()) == []
