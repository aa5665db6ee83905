"""Local users who try to move the directories into which the agent puts files."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, AgentApi, Store, sha256
from tidegate_client.agent.codes import Code
from tidegate_client.agent.disk import Fence, Partials, Permits, require_private
from tidegate_client.agent.journal import HiddenFile, Journal
from tidegate_client.cli import main
from tidegate_client.errors import UsageError

CONTENT = b"tide " * 5000
MALLORY, ALICE = 65534, 4321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for other users of the host")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that every user can reach. Not one of pytest's: each pytest that starts closes them to others."""
    with tempfile.TemporaryDirectory(prefix="tidegate-test-", dir="/tmp") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return tmp_path


def given_to(uid: int, path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


@contextlib.contextmanager
def as_mallory(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs a Python program as an unprivileged user until the test ends; it has to print `ready` first."""
    # Python itself may be installed where only root can read it, so the process changes its user after its start.
    # What it imports later by itself comes first for the same reason.
    change = f"os.setgroups([]); os.setgid({MALLORY}); os.setuid({MALLORY})"
    program = f"import os, encodings.idna, socket, threading; {change}\n{program}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline().strip() == "ready"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def agent_process(api: AgentApi, root: Path, state: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tidegate_client", "agent", "--agent-id", AGENT, "--root", str(root)]
    environment = os.environ | {"TIDEGATE_API_URL": api.url, "TIDEGATE_KEY": "key", "XDG_CONFIG_HOME": str(state)}
    process = subprocess.Popen(
        [*command, "--state-dir", str(state), "--no-push", "--wait", "1", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


# --- at the start


def group_writable(path: Path) -> None:
    os.chown(path, 0, ALICE)
    path.chmod(0o775)


def writable_by_acl(path: Path) -> None:
    """user::rwx, user:MALLORY:rwx, group::r-x, mask::rwx, other::r-x"""
    entries = [(1, 7, 0xFFFFFFFF), (2, 7, MALLORY), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error.strerror}")


def sticky_and_owned(path: Path) -> None:
    given_to(MALLORY, path, 0o1777)


def sticky_with_an_owned_entry(path: Path) -> None:
    path.chmod(0o1777)
    os.chown(path / "app", MALLORY, MALLORY)


MOVABLE: dict[str, Callable[[Path], None]] = {
    "owned": lambda path: os.chown(path, MALLORY, MALLORY),
    "writable by all": lambda path: path.chmod(0o777),
    "writable by a group": group_writable,
    "writable by an ACL": writable_by_acl,
    "sticky, but owned": sticky_and_owned,
    "sticky, entry owned": sticky_with_an_owned_entry,
}


@pytest.mark.parametrize("how", MOVABLE)
@pytest.mark.parametrize("option", ["--root", "--allow-dir", "--container-root"])
def test_directory_that_a_user_may_move_is_refused_at_start(tmp_path: Path, how: str, option: str) -> None:
    inner = tmp_path / "parent/app/deep"
    inner.mkdir(parents=True)
    MOVABLE[how](tmp_path / "parent")
    given = {
        "--root": (inner, (), None),
        "--allow-dir": (tmp_path, ("/parent/app/deep",), None),
        "--container-root": (tmp_path, (), inner),
    }

    with pytest.raises(UsageError, match=rf"{option} .* is not safe: a user other than root may rename or replace"):
        Fence(*given[option])


def test_directory_of_a_user_in_a_directory_of_root_is_accepted(tmp_path: Path) -> None:
    given_to(MALLORY, tmp_path / "srv/app", 0o777)
    (tmp_path / "sticky/mine").mkdir(parents=True)
    (tmp_path / "sticky").chmod(0o1777)
    group_of_root = tmp_path / "group"
    (group_of_root / "app").mkdir(parents=True)
    group_of_root.chmod(0o775)

    with Fence(tmp_path, ("/srv/app", "/sticky/mine", "/group/app")) as fence:
        assert [path.relative_to(tmp_path).as_posix() for path in fence.writable] == [
            "srv/app",
            "sticky/mine",
            "group/app",
        ]


def test_symlink_in_a_directory_of_a_user_is_refused_at_start(tmp_path: Path) -> None:
    """The user could change it before the next start."""
    (tmp_path / "srv").mkdir()
    given_to(MALLORY, tmp_path / "home")
    (tmp_path / "home/link").symlink_to(tmp_path / "srv")
    (tmp_path / "good").symlink_to(tmp_path / "srv")

    with pytest.raises(UsageError, match="may rename or replace"):
        Fence(tmp_path / "home/link")
    with Fence(tmp_path / "good") as fence:
        assert fence.root.path == tmp_path / "srv"


@pytest.mark.parametrize("where", ["itself", "above", "missing"])
def test_state_directory_that_a_user_may_write_is_refused(tmp_path: Path, where: str) -> None:
    given_to(MALLORY, tmp_path / "above")
    given_to(MALLORY if where == "itself" else 0, tmp_path / "above/state")
    if where == "itself":
        os.chown(tmp_path / "above", 0, 0)
    state = tmp_path / "above/none" if where == "missing" else tmp_path / "above/state"

    with pytest.raises(UsageError, match=r"--state-dir .* is not safe"):
        require_private("--state-dir", state, create=True)


def test_agent_doctor_and_install_refuse_an_unsafe_directory(
    api: AgentApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_API_URL", api.url)
    monkeypatch.setenv("TIDEGATE_KEY", "key")
    (given_to(MALLORY, tmp_path / "home") / "files").mkdir()
    options = ["--agent-id", AGENT, "--root", str(tmp_path), "--allow-dir", "/home/files"]
    state = ["--state-dir", str(tmp_path / "state")]

    assert main(["agent", *options, *state]) == 2
    assert f"'{tmp_path}/home' belongs to uid {MALLORY}; give it to root" in capsys.readouterr().err
    assert main(["agent", "install", "--print", *options]) == 2
    assert "is not safe" in capsys.readouterr().err
    assert main(["--json", "agent", "doctor", *options, *state]) == 1
    failed = [row for row in json.loads(capsys.readouterr().out)["items"] if row["result"] == "FAILED"]
    assert [row["check"] for row in failed] == ["allowed directory"]
    assert not (tmp_path / "state").exists()


# --- moved or replaced later


@pytest.mark.parametrize("target", ["root", "srv", "srv/app"])
def test_directory_replaced_by_a_symlink_fails_with_its_own_code(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent, target: str
) -> None:
    (root / "srv/app").mkdir(parents=True)
    outside = tmp_path / "outside"
    (outside / "srv/app").mkdir(parents=True)
    (outside / "app").mkdir()
    running = start_agent(permits=Permits(("/srv/app",)))
    assert api.wait_for(api.add("before", CONTENT, directory="/srv/app"))["error_code"] == 0
    replaced = root if target == "root" else root / target
    replaced.rename(tmp_path / "old")
    replaced.symlink_to(outside)

    result = api.wait_for(api.add("f", CONTENT, directory="/srv/app"))

    assert result["error_code"] == Code.DIRECTORY_MOVED
    assert "was moved or replaced after the agent had started" in result["error_msg"]
    assert files_below(outside) == []
    assert any("was moved or replaced" in problem for problem in running.agent.health()["problems"])


def test_directory_replaced_by_another_one_fails_with_its_own_code(
    api: AgentApi, root: Path, start_agent: StartAgent
) -> None:
    (root / "srv/app").mkdir(parents=True)
    start_agent(permits=Permits(("/srv/app",)))
    assert api.wait_for(api.add("before", CONTENT, directory="/srv/app"))["error_code"] == 0
    (root / "srv/app").rename(root / "srv/old")
    (root / "srv/app").mkdir()

    replaced = api.add("f", CONTENT, directory="/srv/app")
    moved = api.add("g", CONTENT, directory="/srv/old")
    never_allowed = api.add("h", CONTENT, directory="/etc")

    assert api.wait_for(replaced)["error_code"] == Code.DIRECTORY_MOVED
    assert api.wait_for(moved)["error_code"] == Code.DIRECTORY_MOVED
    assert api.wait_for(never_allowed)["error_code"] == Code.PATH_REFUSED
    assert files_below(root) == ["srv/old/before"]


def test_directory_moved_during_a_download_fails_and_publishes_nothing(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.seconds_a_chunk = 0.3
    (root / "srv/app").mkdir(parents=True)
    transfer = api.add("f", CONTENT * 20, directory="/srv/app", sequence=7)
    newer = sha256(CONTENT)
    start_agent(permits=Permits(("/srv",)))
    while not list((root / "srv/app").iterdir()):
        time.sleep(0.01)
    (root / "srv/app").rename(root / "srv/old")

    assert api.wait_for(transfer)["error_code"] == Code.DIRECTORY_MOVED
    assert files_below(root) == []
    api.store.objects[newer] = CONTENT
    older = api.add("f", CONTENT, directory="/srv/app", sequence=6, object=newer)
    assert api.wait_for(older)["error_code"] == 0, "the content that did not arrive does not count as newer"


# --- symlinks and directories of users below the fence


def test_users_symlink_is_followed_only_to_a_directory_of_that_user(
    api: AgentApi, root: Path, start_agent: StartAgent
) -> None:
    theirs = given_to(MALLORY, root / "srv/mallory")
    given_to(MALLORY, theirs / "releases/5")
    given_to(ALICE, root / "srv/alice/conf")
    links = {"current": "releases/5", "to-alice": "../alice/conf", "to-srv": "..", "dangling": "../new"}
    for name, target in links.items():
        (theirs / name).symlink_to(target)
        os.lchown(theirs / name, MALLORY, MALLORY)
    # A symlink of root, which the owner of its directory may rename.
    (theirs / "of-root").symlink_to(root / "srv/alice/conf")
    wanted = {f"/srv/mallory/{name}": Code.PATH_REFUSED for name in (*links, "of-root", "to-srv/alice/conf")}
    wanted["/srv/mallory/current"] = Code.DONE
    transfers = {directory: api.add("f", CONTENT, directory=directory, target_user="nobody") for directory in wanted}

    start_agent(permits=Permits(("/srv",)))

    assert {directory: api.wait_for(one)["error_code"] for directory, one in transfers.items()} == wanted
    assert list(root.rglob("f")) == [theirs / "releases/5/f"]
    assert not (root / "srv/new").exists()


def test_directory_put_in_place_of_a_created_one_is_not_given_away(
    api: AgentApi, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = given_to(MALLORY, root / "srv")
    (theirs / "of-root").mkdir(mode=0o700)
    (theirs / "of-root/secret").write_text("root's")
    create = os.mkdir

    def create_and_swap(name: str, *more: Any, **options: Any) -> None:
        create(name, *more, **options)
        if name == "new":
            (theirs / "new").rename(theirs / "away")
            (theirs / "of-root").rename(theirs / "new")

    monkeypatch.setattr(os, "mkdir", create_and_swap)
    transfer = api.add("f", CONTENT, directory="/srv/new", target_user="nobody")

    start_agent(permits=Permits(("/srv",)))

    assert api.wait_for(transfer)["error_code"] == Code.PATH_REFUSED
    assert (theirs / "new").stat().st_uid == 0
    assert files_below(root) == ["srv/new/secret"]


def test_many_transfers_into_one_new_directory_all_succeed(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    transfers = [
        api.add(f"f{number}", CONTENT, directory=f"/new/{number // 8}/deep", target_user="nobody")
        for number in range(32)
    ]

    start_agent(parallel=8)

    assert [api.wait_for(transfer)["error_code"] for transfer in transfers] == [0] * 32
    assert {path.stat().st_uid for path in (root / "new").rglob("*")} == {MALLORY}


# --- containers


def test_container_and_its_allowed_directory_cannot_be_moved_by_its_users(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    containers, outside = tmp_path / "containers", tmp_path / "outside"
    (outside / "app").mkdir(parents=True)
    (containers / "good/srv/app").mkdir(parents=True)
    (containers / "new").mkdir()
    (given_to(MALLORY, containers / "bad/home") / "x").mkdir()
    (containers / "bad/srv").symlink_to(outside)
    (containers / "unsafe").mkdir()
    (given_to(MALLORY, containers / "unsafe/srv") / "app").mkdir()
    (containers / "host").symlink_to("/proc/self/root")
    wanted = {"good": 0, "new": 0, "bad": 1003, "unsafe": 1003, "host": 1003, "none": 1003}
    transfers = {
        name: api.add("f", CONTENT, directory="/srv/app", container_id=name, target_user="root") for name in wanted
    }

    start_agent(container_root=containers, permits=Permits(("/srv/app",)), parallel=1)

    assert {name: api.wait_for(one)["error_code"] for name, one in transfers.items()} == wanted
    assert files_below(outside) == []
    assert files_below(containers / "new") == ["srv/app/f"]
    on_host = api.add("g", CONTENT, directory="/elsewhere")
    assert api.wait_for(on_host)["error_code"] == Code.PATH_REFUSED, "the host itself has no allowed directory"


# --- old files of the agent


def test_sweep_below_a_swapped_directory_removes_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "root/theirs/deep").mkdir(parents=True)
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    journal = Journal(tmp_path / "state", now=lambda: 0.0)
    precious = tmp_path / "elsewhere/deep/.a.part"
    precious.write_text("keep")
    with Fence(tmp_path / "root") as fence:
        for name in ("root/theirs/deep/.a.part", "root/other/.b.part", "elsewhere/deep/.a.part"):
            journal.part_opened(HiddenFile(tmp_path / name, ""), tmp_path / name)
        (tmp_path / "root/theirs").rename(tmp_path / "root/moved")
        (tmp_path / "root/theirs").symlink_to(tmp_path / "elsewhere")

        assert Partials(journal, fence, seconds=5, now=lambda: 100.0).sweep() == 3

    assert precious.read_text() == "keep"


# --- with real processes

# Swaps DIRECTORY and a symlink to OUTSIDE, as fast as it can.
SWAP = """
import os, sys
directory, outside = sys.argv[1:]
os.chdir(os.path.dirname(directory))
name = os.path.basename(directory)
print("ready", flush=True)
number = 0
while True:
    number += 1
    try:
        os.rename(name, f"{name}.{number}")
        os.symlink(outside, name)
        os.unlink(name)
        os.rename(f"{name}.{number}", name)
    except OSError:
        pass
"""


@pytest.mark.parametrize("swapped", ["srv/home", "srv/home/files", "srv/home/files/sub"])
def test_swapping_a_parent_directory_puts_no_file_outside(api: AgentApi, world: Path, swapped: str) -> None:
    """The attacker got the directories above the fence after the agent had started."""
    home, outside = world / "srv/home", world / "outside"
    given_to(0, home / "files/sub")
    for inner in ("files/sub", "sub"):
        (outside / inner).mkdir(parents=True)
    with agent_process(api, world, world / "state", "--allow-dir", "/srv/home/files") as agent:
        assert api.wait_for(api.add("first", CONTENT, directory="/srv/home/files/sub"))["error_code"] == 0
        for directory in (world / "srv", home, home / "files", home / "files/sub"):
            given_to(MALLORY, directory)
        before = (outside.stat().st_uid, (outside / "sub").stat().st_uid)
        with as_mallory(SWAP, world / swapped, outside):
            transfers = [
                api.add(f"f{number}", CONTENT + bytes([number]), directory=f"/srv/home/files/sub/{number % 3}")
                for number in range(120)
            ]
            codes = [api.wait_for(transfer, seconds=60)["error_code"] for transfer in transfers]
        assert agent.poll() is None

    assert set(codes) <= {0, Code.PATH_REFUSED, Code.DIRECTORY_MOVED, Code.WRITE_FAILED}
    assert len(codes) - codes.count(0) > 0, "the attack was fast enough to hit a delivery"
    assert files_below(outside) == []
    assert sorted(path.name for path in outside.rglob("*")) == ["files", "sub", "sub"], "nor any directory"
    assert (outside.stat().st_uid, (outside / "sub").stat().st_uid) == before


# Opens FILE for writing and overwrites it whenever it gets a line.
KEEP_OPEN = """
import os, sys
path, how = sys.argv[1:]
descriptor = os.open(path, os.O_RDWR)
print("ready", flush=True)
for _ in sys.stdin:
    os.pwrite(descriptor, b"EVIL", 0)
    print("written", flush=True)
"""


def overwrite(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write("now\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == "written"


@pytest.mark.parametrize(("owner", "mode"), [("root", None), ("root", "0600"), ("nobody", "0600")])
def test_descriptor_of_the_former_owner_cannot_change_a_delivered_file(
    api: AgentApi, world: Path, owner: str, mode: str | None
) -> None:
    root = world / "root"
    data = given_to(MALLORY, root / "data")
    (data / "f").write_bytes(CONTENT)
    os.chown(data / "f", MALLORY, MALLORY)
    with as_mallory(KEEP_OPEN, data / "f", "keep") as mallory, agent_process(api, root, world / "state"):
        transfer = api.add("f", CONTENT, target_user=owner, mode=mode)
        assert api.wait_for(transfer)["error_code"] == 0
        overwrite(mallory)

    assert (data / "f").read_bytes() == CONTENT
    assert (data / "f").owner() == owner
    assert api.store.requests == [], "the content was copied on the host, not downloaded"
    assert [path.name for path in data.iterdir()] == ["f"]


@pytest.mark.parametrize("same_bytes", [False, True])
def test_replaced_file_of_another_user_leaves_no_write_permission(
    api: AgentApi, root: Path, start_agent: StartAgent, same_bytes: bool
) -> None:
    given_to(0, root / "data", 0o1777)
    (root / "data/f").write_bytes(CONTENT if same_bytes else b"mine")
    os.chown(root / "data/f", MALLORY, MALLORY)
    (root / "data/f").chmod(0o666)
    transfer = api.add("f", CONTENT, target_user="root")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").stat().st_mode & 0o777 == 0o644


def test_file_with_the_right_owner_and_mode_is_left_alone(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(CONTENT)
    before = (root / "data/f").stat()
    transfer = api.add("f", CONTENT, mode="0644")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").stat().st_ino == before.st_ino
    assert api.store.requests == []
