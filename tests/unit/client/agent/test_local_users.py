"""What a user of the host can do to files on their way: part files, staged files, and what surrounds the agent."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from local.launcher import processes_per_core
from tests.support.patience import until
from tests.unit.client.agent.test_fence import (
    ALICE,
    CONTENT,
    MALLORY,
    agent_process,
    as_mallory,
    given_to,
    overwrite,
    tmp_path,
    world,
)
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import ME, AgentApi, Store, sha256
from tidegate_client.agent.codes import Code, RefusedOwner
from tidegate_client.agent.disk import Fence, Partials, Permits, has_content, open_place, owner_in_container
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.update import Releases, SigningError, command_of, environment_of, read_keys
from tidegate_client.cli.output import TextLines
from tidegate_client.download import Stalled

__all__ = ["tmp_path", "world"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for other users of the host")
BIG = b"0123456789abcdef" * 30_000


# --- part files and staged files

# Puts what is at HELD, and an open descriptor of it, in place of every hidden entry of its directory; then overwrites
# it whenever it gets a line.
PLANT = """
import os, sys
os.chdir(sys.argv[1])
descriptor = os.open("held", os.O_RDWR)
print("ready", flush=True)
for _ in sys.stdin:
    for name in os.listdir():
        if name.startswith(".tidegate-") and os.path.exists("held"):
            os.rename(name, name + ".away")
            os.rename("held", name)
    os.pwrite(descriptor, b"EVIL", 0)
    print("written", flush=True)
"""


def hidden_in(data: Path) -> list[Path]:
    return list(data.glob(".tidegate-*/*")) or [path for path in data.glob(".tidegate-*") if path.is_file()]


def test_private_file_of_root_that_a_user_holds_is_no_part_file(api: AgentApi, store: Store, world: Path) -> None:
    """Mallory opened it before it became root's, and renames it to the name of a part file that a crash has left."""
    root = world / "root"
    data = given_to(MALLORY, root / "data")
    (data / "held").write_bytes(b"x")
    os.chown(data / "held", MALLORY, MALLORY)
    store.seconds_a_chunk = 0.2
    transfer = api.add("f", BIG, target_user="root")
    with as_mallory(PLANT, data) as mallory:
        os.chown(data / "held", 0, 0)
        (data / "held").chmod(0o600)
        with agent_process(api, root, world / "state") as first:
            until(lambda: any(part.stat().st_size for part in hidden_in(data)), "no download began")
            first.send_signal(signal.SIGKILL)
            first.wait()
        overwrite(mallory)
        assert not (data / "held").exists(), "it was planted"
        store.seconds_a_chunk = 0
        with agent_process(api, root, world / "state"):
            assert api.wait_for(transfer)["error_code"] == 0
            overwrite(mallory)

    assert (data / "f").read_bytes() == BIG
    assert stat.S_IMODE((data / "f").stat().st_mode) == 0o644


def test_killed_agent_resumes_from_its_part_file(api: AgentApi, store: Store, world: Path) -> None:
    root = world / "root"
    data = given_to(MALLORY, root / "data")
    store.seconds_a_chunk = 0.2
    transfer = api.add("f", BIG, target_user="root")
    with agent_process(api, root, world / "state") as first:
        until(lambda: any(part.stat().st_size for part in hidden_in(data)), "no download began")
        (directory,) = data.iterdir()
        assert (directory.stat().st_uid, stat.S_IMODE(directory.stat().st_mode)) == (0, 0o700)
        first.send_signal(signal.SIGKILL)
        first.wait()
    (part,) = hidden_in(data)
    kept = part.stat().st_size
    store.seconds_a_chunk = 0

    with agent_process(api, root, world / "state"):
        assert api.wait_for(transfer)["error_code"] == 0

    assert store.requests[-1] == ("f", f"bytes={kept}-")
    assert [path.name for path in data.iterdir()] == ["f"]


# Waits for the staged file's directory, moves it away and puts a copy of the content in its place.
SWAP_STAGED = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
for _ in sys.stdin:
    for name in os.listdir():
        if name.startswith(".tidegate-"):
            os.rename(name, "away")
            os.mkdir(name, 0o700)
    print("written", flush=True)
"""


def test_staged_file_that_a_user_replaced_is_not_put_in_place(api: AgentApi, world: Path) -> None:
    root = world / "root"
    data = given_to(MALLORY, root / "data")
    with agent_process(api, root, world / "state"), as_mallory(SWAP_STAGED, data) as mallory:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 6 * processes_per_core()))
        transfer = api.add("f", CONTENT, target_user="root", activate_at=at, activate_until="2099-01-01T00:00:00Z")
        until(lambda: any(one.get("staged_at") for one in api.results), "it was not staged")
        overwrite(mallory)
        result = api.wait_for(transfer)

    assert result["error_code"] == Code.STAGED_FILE_LOST
    assert "was removed before its activate_at" in result["error_msg"]
    assert not (data / "f").exists()


@pytest.mark.parametrize("kind", ["file", "FIFO", "symlink", "directory of root", "directory of mallory"])
def test_entry_of_a_user_at_a_part_files_name_is_left_alone(tmp_path: Path, kind: str) -> None:
    journal, owner = Journal(tmp_path / "state"), (0, 0)
    data = given_to(MALLORY, tmp_path / "data")
    with Fence(tmp_path) as fence, open_place(fence, "/data", "f", owner) as place:
        partials = Partials(journal, fence)
        with partials.opened(place, ["content"]) as part:
            first = part.hidden.path
        first.rename(data / "away")
        if kind == "file":
            first.write_text("theirs")
        elif kind == "FIFO":
            os.mkfifo(first)
        elif kind == "symlink":
            first.symlink_to(data / "away")
        else:
            first.mkdir(mode=0o700)
            (first / "theirs").touch()
            os.chown(first, MALLORY if "mallory" in kind else 0, 0)
        with partials.opened(place, ["content"]) as part:
            assert part.hidden.path != first
            assert part.file.read() == b""
            partials.discard(place, part)

        assert sorted(path.name for path in data.iterdir()) == sorted(["away", first.name])


def test_part_file_in_a_directory_that_a_user_moved_leaves_no_bytes(tmp_path: Path) -> None:
    """They would count for root's quota, and nobody else could remove them."""
    data = given_to(MALLORY, tmp_path / "data")
    with Fence(tmp_path) as fence, open_place(fence, "/data", "f", (0, 0)) as place:
        partials = Partials(Journal(tmp_path / "state"), fence)
        with partials.opened(place, ["content"]) as part:
            part.file.write(BIG)
            part.hidden.path.rename(data / "away")
            partials.discard(place, part)

    assert list((data / "away").iterdir()) == []


def test_other_users_cannot_read_the_journal(tmp_path: Path) -> None:
    given_to(0, tmp_path / "state", 0o755)
    (tmp_path / "state/journal.sqlite").touch(mode=0o644)
    journal = Journal(tmp_path / "state")

    journal.begin_process()

    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()} == {0o600}


def test_directory_at_the_destination_is_named_in_the_error(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    (root / "data/f").mkdir(parents=True)
    transfer = api.add("f", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_msg"] == f"[Errno 21] Is a directory: '{root / 'data/f'}'"
    assert [path.name for path in (root / "data").iterdir()] == ["f"]


def test_wait_for_another_delivery_of_the_same_file_has_a_limit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state")
    with Fence(tmp_path) as fence, open_place(fence, "/", "f", (0, 0)) as place:
        partials = Partials(journal, fence)
        with (
            partials.opened(place, ["content"]),
            pytest.raises(Stalled, match="another delivery"),
            partials.opened(place, ["content"], patience=0.1),
        ):
            pass


def test_part_file_of_a_journal_that_was_lost_is_not_used(api: AgentApi, world: Path, start_agent: StartAgent) -> None:
    """Nothing but the journal tells the agent's files from others."""
    data = given_to(MALLORY, world / "root/data")
    planted = data / f".tidegate-{sha256(CONTENT)[:16]}.part"
    planted.mkdir(mode=0o700)
    (planted / "x").write_bytes(b"EVIL")
    transfer = api.add("f", CONTENT, target_user="root")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (data / "f").read_bytes() == CONTENT
    assert (planted / "x").read_bytes() == b"EVIL"


# --- what a directory's owner chooses


def acl_of_mallory() -> bytes:
    """user::rwx, user:MALLORY:rwx, group::rwx, mask::rwx, other::rwx"""
    entries = [(1, 7, 0xFFFFFFFF), (2, 7, MALLORY), (4, 7, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 7, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_default_acl_of_a_users_directory_gives_nobody_access(
    api: AgentApi, world: Path, start_agent: StartAgent
) -> None:
    data = given_to(MALLORY, world / "root/data")
    try:
        os.setxattr(data, "system.posix_acl_default", acl_of_mallory())
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error.strerror}")
    file = api.add("f", CONTENT, target_user="root", mode="0660")
    below = api.add("g", CONTENT, target_user="root", mode="0660", directory="/data/new")

    start_agent()

    assert [api.wait_for(one)["error_code"] for one in (file, below)] == [0, 0]
    for path in (data / "f", data / "new", data / "new/g"):
        assert not [name for name in os.listxattr(path) if "acl" in name], path
    assert stat.S_IMODE((data / "f").stat().st_mode) == 0o660


@pytest.mark.parametrize("link_of", [ALICE, 0, MALLORY])
def test_symlink_moved_into_a_users_directory_chooses_nothing(
    api: AgentApi, world: Path, start_agent: StartAgent, link_of: int
) -> None:
    """Mallory cannot make a symlink of Alice, but can rename one that Alice made in Mallory's directory."""
    home = given_to(MALLORY, world / "root/home")
    given_to(ALICE, world / "root/alice")
    (home / "sub").symlink_to("../alice")
    os.lchown(home / "sub", link_of, link_of)
    transfer = api.add("f", CONTENT, target_user="root", directory="/home/sub")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.PATH_REFUSED
    assert list((world / "root/alice").iterdir()) == []


@pytest.mark.parametrize("mode", [0o1777, 0o770])
def test_symlink_in_a_directory_of_several_users_is_not_followed(
    api: AgentApi, world: Path, start_agent: StartAgent, mode: int
) -> None:
    shared = world / "root/shared"
    given_to(0 if mode == 0o1777 else ALICE, shared, mode)
    given_to(ALICE, world / "root/alice")
    (shared / "sub").symlink_to("../alice")
    os.lchown(shared / "sub", ALICE, ALICE)
    transfer = api.add("f", CONTENT, target_user="root", directory="/shared/sub")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.PATH_REFUSED


@pytest.mark.parametrize("trick", ["hard link", "moved file"])
def test_mode_of_another_users_file_gives_no_write_permission(
    api: AgentApi, world: Path, start_agent: StartAgent, trick: str
) -> None:
    data = given_to(MALLORY, world / "root/data")
    (world / "public").write_bytes(b"root's own, for all to write")
    (world / "public").chmod(0o666)
    if trick == "hard link":
        os.link(world / "public", data / "f")
    else:
        (world / "public").rename(data / "f")
    transfer = api.add("f", CONTENT, target_user="root")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert stat.S_IMODE((data / "f").stat().st_mode) == 0o644


def test_own_files_mode_is_kept_in_a_directory_of_its_owner(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(b"old")
    (root / "data/f").chmod(0o664)
    transfer = api.add("f", CONTENT, target_user=ME)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert stat.S_IMODE((root / "data/f").stat().st_mode) == 0o664


# --- time


def test_sparse_file_of_a_user_is_not_read(tmp_path: Path) -> None:
    """A file of a petabyte costs its owner nothing. To read one of a gigabyte takes half a second here."""
    size = 64 * 1024**4 // 8
    with (tmp_path / "f").open("wb+") as file:
        file.write(b"x")
        os.ftruncate(file.fileno(), size)
        began = time.process_time()
        assert not has_content(file, sha256(b""), size)
        assert not has_content(file, sha256(b""), None)
    assert time.process_time() - began < 0.2


def test_sparse_file_at_the_target_does_not_delay_a_delivery(
    api: AgentApi, root: Path, start_agent: StartAgent
) -> None:
    (root / "data").mkdir()
    with (root / "data/f").open("wb") as file:
        os.ftruncate(file.fileno(), 8 * 1024**4)
    transfer = api.add("f", CONTENT, size=None)

    start_agent(parallel=1)

    assert api.wait_for(transfer, seconds=10)["error_code"] == 0
    assert (root / "data/f").read_bytes() == CONTENT


def test_growing_file_is_read_only_to_its_first_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT)

    class Growing:
        """Its owner appends to it whenever the agent has read something."""

        def __init__(self) -> None:
            self.file = path.open("rb")
            self.reads = 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def read(self, size: int) -> bytes:
            self.reads += 1
            assert self.reads < 100
            with path.open("ab") as more:
                more.write(CONTENT)
            return self.file.read(size)

    assert has_content(Growing(), sha256(CONTENT), len(CONTENT))  # type: ignore[arg-type]


# --- the port of metrics


def get(port: int, path: str = "/healthz") -> tuple[int, str]:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.status, answer.read().decode()


# Takes the PORT and keeps it.
TAKE_PORT = """
import socket, sys
taken = socket.socket()
taken.bind(("127.0.0.1", int(sys.argv[1])))
taken.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_agent_whose_metrics_port_is_taken_delivers_without_metrics(api: AgentApi, world: Path) -> None:
    (world / "root").mkdir()
    port = free_port()
    with (
        as_mallory(TAKE_PORT, port),
        agent_process(api, world / "root", world / "state", "--metrics", f"127.0.0.1:{port}") as agent,
    ):
        assert api.wait_for(api.add("f", CONTENT))["error_code"] == 0
        assert agent.poll() is None
        until((world / "state/health.json").exists, "no health was written")
        health = json.loads((world / "state/health.json").read_text())
        assert health["healthy"]
        assert f"health and metrics are not served on 127.0.0.1:{port}" in health["warnings"][0]
        assert "--metrics" in health["warnings"][0]


def test_metrics_are_served_once_their_port_is_free(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_client.agent.service.BIND_EVERY", 0.1)
    port = free_port()
    with as_mallory(TAKE_PORT, port):
        running = start_agent(metrics=("127.0.0.1", port))
        until(lambda: running.agent.health()["warnings"], "it did not notice")

    def is_served() -> bool:
        try:
            return get(port)[0] == 200
        except OSError:
            return False

    until(is_served, "not served after the port was free")
    assert running.agent.health()["warnings"] == []


# Opens as many connections to PORT as it can and sends a byte now and then; others ask as fast as they can.
FLOOD = """
import socket, sys, threading, time
port = int(sys.argv[1])
held = []
def hold():
    while True:
        try:
            one = socket.create_connection(("127.0.0.1", port), 1)
            one.send(b"G")
            held.append(one)
        except OSError:
            time.sleep(0.01)
        del held[:-200]
def ask():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as one:
                one.send(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
                one.recv(100)
        except OSError:
            pass
for work in (hold, ask):
    threading.Thread(target=work, daemon=True).start()
time.sleep(1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_flooded_metrics_port_leaves_threads_and_deliveries_alone(api: AgentApi, world: Path) -> None:
    (world / "root").mkdir()
    port = free_port()
    with agent_process(api, world / "root", world / "state", "--metrics", f"127.0.0.1:{port}") as agent:
        assert api.wait_for(api.add("first", CONTENT))["error_code"] == 0
        status = Path(f"/proc/{agent.pid}/status")

        def threads() -> int:
            (found,) = (line for line in status.read_text().splitlines() if line.startswith("Threads:"))
            return int(found.split()[1])

        before = threads()
        with as_mallory(FLOOD, port):
            files = [api.add(f"f{number}", CONTENT) for number in range(20)]
            most = before
            for _ in range(20):
                time.sleep(0.05)
                most = max(most, threads())
            assert [api.wait_for(one)["error_code"] for one in files] == [0] * 20

        # Of each call that is answered: a thread, and the timer that ends it.
        assert most - before <= 8


# --- users of a container


@pytest.mark.parametrize(
    ("passwd", "user", "refused"),
    [
        ("app:x:0:0::/:/bin/sh", "app", "uid 0 of 'root'"),
        ("root:x:0:0::/:\ndb:x:70:70::/:\napp:x:70:70::/:", "app", "uid 70 of 'db'"),
        ("app:x:1000:0::/:", "app", "the group of root"),
        ("app:x:1000:1000::/:", "app", None),
        ("app:x:1000:1000::/:\nweb:x:1000:1000::/:", "app", None),
    ],
)
def test_containers_passwd_cannot_name_a_user_who_is_not_allowed(passwd: str, user: str, refused: str | None) -> None:
    permits = Permits(users=frozenset({"app", "web"}))
    if refused is None:
        assert owner_in_container(passwd, user, permits) == (1000, 1000)
        return
    with pytest.raises(RefusedOwner, match=refused):
        owner_in_container(passwd, user, permits)
    assert owner_in_container(passwd, user, Permits())


def test_container_that_calls_its_root_by_an_allowed_name_gets_no_file(
    api: AgentApi, world: Path, start_agent: StartAgent
) -> None:
    containers = world / "containers"
    (containers / "c1/etc").mkdir(parents=True)
    (containers / "c1/etc/passwd").write_text("app:x:0:0::/:/bin/sh\n")
    transfer = api.add("f", CONTENT, container_id="c1", target_user="app", directory="/srv")

    start_agent(container_root=containers, permits=Permits(users=frozenset({"app"})))

    assert api.wait_for(transfer)["error_code"] == Code.OWNER_REFUSED
    assert not (containers / "c1/srv").exists()


# --- the agent's own code, keys and log


def test_release_does_not_import_from_the_current_directory(world: Path) -> None:
    """The installed package starts it wherever it was started itself: perhaps in a directory of another user."""
    theirs = given_to(MALLORY, world / "home/tidegate_client")
    (theirs / "__init__.py").write_text("")
    (theirs / "__main__.py").write_text("print('EVIL')")
    releases = Releases(world / "state")
    environment = environment_of(releases, None)

    answer = subprocess.run(
        command_of(["--version"]), cwd=world / "home", env=environment, capture_output=True, text=True, check=True
    )

    assert "EVIL" not in answer.stdout
    assert "tidegate" in answer.stdout


def test_release_key_behind_a_symlink_of_a_user_is_refused(world: Path) -> None:
    """The file is root's, but the user chooses which: perhaps a key that was replaced long ago."""
    pytest.importorskip("cryptography")
    from tidegate_client.agent.update import create_key

    (world / "keys").mkdir()
    public = create_key(world / "keys/release")
    home = given_to(MALLORY, world / "home")
    (home / "key").symlink_to(public)
    (world / "link").symlink_to("keys/release.pub")

    assert len(read_keys(public)) == len(read_keys(world / "link")) == 1
    with pytest.raises(SigningError, match="another user could sign releases"):
        read_keys(home / "key")


def test_name_with_control_characters_forges_no_line_of_the_log(api: AgentApi, world: Path) -> None:
    (world / "root").mkdir()
    name = "x\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J\u202e"
    with agent_process(api, world / "root", world / "state") as agent:
        transfer = api.add(name, CONTENT, object="x", target_user="nobody-of-that-name")
        api.wait_for(transfer)
        agent.send_signal(signal.SIGTERM)
        assert agent.stderr
        lines = agent.stderr.read().splitlines()

    assert any("all is well" in line for line in lines)
    assert not any(line.startswith("2026-01-01 00:00:00") for line in lines)
    assert not any(char in line for line in lines for char in "\x1b\u202e")


def test_traceback_with_a_line_break_forges_no_line_of_the_log() -> None:
    try:
        raise ValueError("x\n2026-01-01 00:00:00,000 INFO all is well")
    except ValueError:
        record = logging.LogRecord("tidegate.agent", logging.ERROR, "", 0, "it failed", (), sys.exc_info())

    text = TextLines("%(asctime)s %(levelname)s %(message)s").format(record)

    assert [line for line in text.splitlines() if line.startswith("2026-01-01 00:00:00")] == []
    assert "    2026-01-01 00:00:00,000 INFO all is well" in text
