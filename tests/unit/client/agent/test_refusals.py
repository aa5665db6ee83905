"""Transfers that the agent refuses, and attacks by other users of its host."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pwd
import signal
import time
from pathlib import Path

import pytest

from tests.support.patience import until
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import ME, AgentApi, Store
from tidegate_client.agent import disk as owners
from tidegate_client.agent.codes import Code
from tidegate_client.agent.disk import Permits

CONTENT = b"tide " * 5000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def hold_lock(path: str, kind: str, uid: int, ready: object) -> None:
    """Runs as another user in a process of its own: creates and locks the target file."""
    # By a relative name: only root may enter the directories above.
    os.chdir(Path(path).parent)
    os.setuid(uid)
    descriptor = os.open(Path(path).name, os.O_RDWR | os.O_CREAT, 0o666)
    if kind == "lock":
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    else:
        # Ignore SIGIO, with which the kernel asks for the lease back.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    ready.set()  # type: ignore[attr-defined]
    while True:
        time.sleep(60)


@as_root
@pytest.mark.parametrize("kind", ["lock", "lease"])
def test_lock_held_by_another_user_blocks_no_worker(
    api: AgentApi, root: Path, start_agent: StartAgent, kind: str
) -> None:
    nobody = pwd.getpwnam("nobody")
    (root / "data").mkdir()
    os.chown(root / "data", nobody.pw_uid, nobody.pw_gid)
    processes = multiprocessing.get_context("spawn")
    ready = processes.Event()
    holder = processes.Process(target=hold_lock, args=(str(root / "data/f"), kind, nobody.pw_uid, ready), daemon=True)
    holder.start()
    try:
        until(lambda: ready.is_set() or not holder.is_alive(), "the lock is not held", 60)
        assert ready.is_set()
        transfer = api.add("f", CONTENT, target_user="nobody")
        start_agent(parallel=1)
        assert api.wait_for(transfer, seconds=10)["error_code"] == 0
    finally:
        holder.kill()
        holder.join()
    assert (root / "data/f").read_bytes() == CONTENT


def test_unknown_user_fails_and_writes_nothing(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    transfer = api.add("f", CONTENT, target_user="nobody-of-that-name")

    start_agent()

    result = api.wait_for(transfer)
    assert result["error_code"] == Code.OWNER_REFUSED
    assert "nobody-of-that-name" in result["error_msg"]
    assert list(root.iterdir()) == []
    assert store.requests == []


def test_container_target_without_container_root_fails_and_writes_nothing(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    transfer = api.add("f", CONTENT, container_id="c1")

    start_agent()

    result = api.wait_for(transfer)
    assert result["error_code"] == Code.PATH_REFUSED
    assert "--container-root" in result["error_msg"]
    assert list(root.iterdir()) == []
    assert store.requests == []


def test_unknown_container_fails_the_transfer(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    (tmp_path / "containers").mkdir()
    transfer = api.add("f", CONTENT, container_id="gone")

    start_agent(container_root=tmp_path / "containers")

    assert api.wait_for(transfer)["error_code"] == Code.PATH_REFUSED
    assert list((tmp_path / "containers").iterdir()) == []


@as_root
def test_owner_in_a_container_comes_from_its_passwd(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    inside = tmp_path / "containers/c1"
    (inside / "etc").mkdir(parents=True)
    (inside / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nweb:x:4321:4322::/:/bin/sh\n")
    known = api.add("f", CONTENT, container_id="c1", target_user="web")
    unknown = api.add("g", CONTENT, container_id="c1", target_user="nobody")

    start_agent(container_root=tmp_path / "containers")

    assert api.wait_for(known)["error_code"] == 0
    status = (inside / "data/f").stat()
    assert (status.st_uid, status.st_gid) == (4321, 4322)
    assert api.wait_for(unknown)["error_code"] == Code.OWNER_REFUSED


def test_refused_chown_fails_and_leaves_no_file(
    api: AgentApi, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    (root / "data").mkdir()
    transfer = api.add("f", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.OWNER_REFUSED
    assert list((root / "data").iterdir()) == []


def test_agent_without_chown_permission_refuses_before_downloading(
    api: AgentApi, store: Store, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "may_act_for_others", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    transfer = api.add("f", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.OWNER_REFUSED
    assert store.requests == []


@pytest.mark.parametrize(
    ("existing", "wanted", "given"),
    [
        (None, None, 0o644),
        (0o600, None, 0o600),
        (0o755, None, 0o755),
        (0o4755, None, 0o755),
        (None, "0640", 0o640),
        (0o600, "0644", 0o644),
        (0o666, "0600", 0o600),
    ],
)
@pytest.mark.parametrize("same_bytes", [False, True])
def test_mode_is_the_requested_one_or_that_of_the_replaced_file(
    api: AgentApi,
    root: Path,
    start_agent: StartAgent,
    existing: int | None,
    wanted: str | None,
    given: int,
    same_bytes: bool,
) -> None:
    (root / "data").mkdir()
    if existing is not None:
        (root / "data/f").write_bytes(CONTENT if same_bytes else b"old")
        (root / "data/f").chmod(existing)
    transfer = api.add("f", CONTENT, mode=wanted)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").stat().st_mode & 0o777 == given
    assert (root / "data/f").read_bytes() == CONTENT


def test_replaced_symlink_keeps_the_mode_of_its_target(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    (root / "data").mkdir()
    (tmp_path / "secret").write_text("old")
    (tmp_path / "secret").chmod(0o600)
    (root / "data/f").symlink_to(tmp_path / "secret")
    transfer = api.add("f", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("directory", "allowed"),
    [
        ("/srv/app", True),
        ("/srv/app/deep/er", True),
        ("/srv/app-other", False),
        ("/srv", False),
        ("/etc/cron.d", False),
        ("/srv/app/out", False),
        ("/way-in", True),
    ],
)
def test_only_allowed_directories_receive_files(
    api: AgentApi, root: Path, start_agent: StartAgent, directory: str, allowed: bool
) -> None:
    (root / "srv/app").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "srv/app/out").symlink_to(root / "etc")
    (root / "way-in").symlink_to(root / "srv/app")
    transfer = api.add("f", CONTENT, directory=directory)

    start_agent(permits=Permits(directories=("/srv/app",)))

    assert api.wait_for(transfer)["error_code"] == (0 if allowed else Code.PATH_REFUSED)
    assert list((root / "etc").iterdir()) == []
    assert not (root / "etc/cron.d").exists()


def test_only_allowed_users_receive_files(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    refused = api.add("f", CONTENT, target_user="daemon")
    taken = api.add("g", CONTENT)

    start_agent(permits=Permits(users=frozenset({ME})))

    assert api.wait_for(refused)["error_code"] == Code.OWNER_REFUSED
    assert api.wait_for(taken)["error_code"] == 0
