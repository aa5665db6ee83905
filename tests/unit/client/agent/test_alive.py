"""The agent survives a proxy's pages, a full disk and unexpected errors, and reports its health."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.patience import until
from tests.unit.client.conftest import Running, StartAgent
from tests.unit.client.fakes import AGENT, AgentApi, sha256
from tidegate_client.agent.codes import Code
from tidegate_client.agent.disk import Fence, Partials, open_place
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import Journal, JournalError
from tidegate_client.agent.service import HEALTH_FILE, notify_systemd, read_health
from tidegate_client.agent.threads import SupervisedThread
from tidegate_client.rates import Backoff

CONTENT = os.urandom(50_000)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff.__init__, "__defaults__", (0.05, 0.4, 0, 0.5))


@pytest.mark.parametrize("page", [b"<html>Please log in</html>", b"", b"[]", b'{"items": 3}', b'{"items": [{}]}', b"1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_agent_survives_a_proxys_page_instead_of_the_api(
    api: AgentApi, root: Path, start_agent: StartAgent, page: bytes, method: str
) -> None:
    api.page, api.page_for = page, (method,)
    transfer = api.add("f", CONTENT)
    running = start_agent()
    time.sleep(0.6)
    assert api.results == []

    api.page = None

    assert api.wait_for(transfer, 10)["error_code"] == 0
    assert (root / "data/f").read_bytes() == CONTENT
    assert not any(running.agent.health()["restarts"].values()), (
        "such an answer is expected, so no thread was restarted"
    )


@pytest.fixture
def small_disk(root: Path) -> Iterator[Path]:
    """The agent's root as a small file system of its own."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(root)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system of its own needs root")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def fill(disk: Path) -> Path:
    """Fills every byte of the disk and returns the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break
    return filler


def test_full_disk_is_reported_and_deliveries_resume_with_space(
    api: AgentApi, small_disk: Path, start_agent: StartAgent
) -> None:
    """Journal and files are on one full disk, and the API refuses results: these wait in memory."""
    first = api.add("first", CONTENT, sequence=1)
    running = start_agent(state_dir=small_disk / "state")
    assert api.wait_for(first)["error_code"] == 0
    until(lambda: running.agent.health()["untold_results"] == 0)
    filler = fill(small_disk)
    api.refuse_results = True
    failed = [f"tr-{number}-{'x' * 150}" for number in range(60)]
    for number, transfer_id in enumerate(failed):
        added = api.add(f"f{number}", CONTENT, sequence=2 + number, transfer_id=transfer_id)
        api.transfers[transfer_id] = api.transfers.pop(added)

    def untold() -> set[str]:
        # One that is offered again may be in both.
        stored, kept = running.agent._journal.pending(1000), running.agent._reporter._unsaved.copy()
        return {result["transfer_id"] for result in (*stored, *kept.values())}

    until(lambda: untold() >= set(failed))
    filler.unlink()
    api.refuse_results = False

    assert {api.wait_for(one)["error_code"] for one in failed} == {Code.NO_SPACE}
    after = api.add("after", CONTENT, sequence=99)
    assert api.wait_for(after)["error_code"] == 0
    until(lambda: running.agent.health()["healthy"])


def test_full_disk_under_the_journal_leaves_no_transaction_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(50):
        journal.record({"transfer_id": f"tr-{number}", "container_id": "", "error_code": 0})
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")

    def overfill() -> None:
        for number in range(1000):
            journal.record({"transfer_id": f"more-{number}", "container_id": "x" * 400, "error_code": 0})

    with pytest.raises(JournalError) as caught:
        overfill()
    assert caught.value.errno == errno.ENOSPC
    journal._connection.execute("PRAGMA max_page_count = 100000")

    journal.acknowledge([("tr-1", "")])
    journal.record({"transfer_id": "last", "container_id": "", "error_code": 0})
    assert journal.has_result(("last", ""))


@pytest.mark.parametrize("where", ["poller", "worker", "reporter"])
def test_thread_is_restarted_after_an_unexpected_error(
    api: AgentApi, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    method = {"poller": "accept_poll", "worker": "is_cancelled", "reporter": "unreported"}[where]
    original, failures = getattr(Inbox, method), [3]

    def broken(self: Inbox, *args: object, **more: object) -> object:
        if failures[0] and threading.current_thread().name.startswith(where):
            failures[0] -= 1
            raise MemoryError if where != "worker" else SystemExit
        return original(self, *args, **more)

    monkeypatch.setattr(Inbox, method, broken)
    transfer = api.add("f", CONTENT)

    running = start_agent(parallel=1)

    assert api.wait_for(transfer)["error_code"] == 0
    until(lambda: sum(running.agent.health()["restarts"].values()) == 3)


def test_watched_loop_backs_off_after_failures_and_stops() -> None:
    pauses: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return super().wait(timeout)

    def loop() -> None:
        raise ValueError("no")

    stopping = Stopping()
    watched = SupervisedThread("loop", loop, stopping)
    watched.start()
    until(lambda: len(pauses) >= 5)
    stopping.set()
    until(lambda: not watched.is_alive())

    assert pauses[3] > pauses[0]
    assert watched.restarts >= 5
    assert "ValueError" in watched.last_error


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except OSError as error:
        return getattr(error, "code", 0), getattr(error, "read", lambda: b"")().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_bytes_that_were_there_do_not_count_as_received(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    there = len(CONTENT) // 2
    journal, owner = Journal(tmp_path / "state"), (os.geteuid(), os.getegid())
    with (
        Fence(root) as fence,
        open_place(fence, "/data", "f", owner) as place,
        Partials(journal, fence).opened(place, (AGENT, sha256(CONTENT))) as part,
    ):
        part.file.write(CONTENT[:there])
    journal.close()
    transfer = api.add("f", CONTENT)

    running = start_agent()

    assert api.wait_for(transfer)["size"] == len(CONTENT) - there
    assert f"tidegate_agent_received_bytes_total {len(CONTENT) - there}\n" in running.agent.metrics()


def test_health_and_metrics_are_served_locally_and_in_a_file(
    api: AgentApi, tmp_path: Path, start_agent: StartAgent
) -> None:
    port = free_port()
    transfer = api.add("f", CONTENT)
    refused = api.add("g", CONTENT, target_user="nobody-of-that-name")
    start_agent(metrics=("127.0.0.1", port))
    api.wait_for(transfer)
    api.wait_for(refused)

    status, text = get(port, "/healthz")
    assert (status, json.loads(text)["healthy"]) == (200, True)
    _, metrics = get(port, "/metrics")
    assert 'tidegate_agent_transfers_total{result="done"} 1\n' in metrics
    assert 'tidegate_agent_transfers_total{result="owner_refused"} 1\n' in metrics
    assert f"tidegate_agent_received_bytes_total {len(CONTENT)}\n" in metrics
    assert "tidegate_agent_healthy 1\n" in metrics
    assert get(port, "/other")[0] == 404
    until(lambda: (tmp_path / "state" / HEALTH_FILE).exists())
    health = read_health(tmp_path / "state")
    assert health
    assert health["pid"] == os.getpid()


def test_thread_without_progress_makes_the_agent_unhealthy(
    api: AgentApi, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    running: Running = start_agent(metrics=("127.0.0.1", port))
    until(lambda: get(port, "/healthz")[0] == 200)
    monkeypatch.setattr(SupervisedThread, "silent_seconds", lambda self: 500.0)

    until(lambda: get(port, "/healthz")[0] == 503)
    _, text = get(port, "/healthz")
    assert "the thread poller has made no progress for 500 s" in json.loads(text)["problems"]
    assert not running.agent.health()["healthy"]


def test_systemd_receives_notifications(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        notify_systemd("READY=1", str(tmp_path / "notify"))
        assert systemd.recv(100) == b"READY=1"
    notify_systemd("READY=1", str(tmp_path / "nobody-listens"))


def test_unmounted_root_is_reported_as_a_health_problem(root: Path, tmp_path: Path, start_agent: StartAgent) -> None:
    running = start_agent()
    root.rename(tmp_path / "elsewhere")

    health = running.agent.health()

    assert (health["healthy"], health["free_bytes"]) == (False, -1)
    assert any(problem.startswith(f"{root} cannot be read") for problem in health["problems"])
