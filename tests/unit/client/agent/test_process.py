"""The agent as a process that is killed, terminated and restarted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.http_servers import free_port
from tests.support.patience import ended, idle_clock
from tests.unit.client.fakes import AGENT, AgentApi, Store, sha256
from tidegate_client.agent.codes import Code

CONTENT = random.Random(9).randbytes(2_000_000)
Launch = Callable[..., "subprocess.Popen[bytes]"]
# The agent as a process, but with less patience: its argument, in seconds.
SHORT_PATIENCE = """
import sys
from tidegate_client.agent.delivery import ResumingDownload
from tidegate_client.cli import main
patience, made = float(sys.argv.pop(1)), ResumingDownload.__init__
def impatient(self, *args, **options):
    made(self, *args, **options | {"patience": patience})
ResumingDownload.__init__ = impatient
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "xdg"


@pytest.fixture
def launch(api: AgentApi, root: Path, state: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str, patience: float | None = None) -> subprocess.Popen[bytes]:
        program = ["-c", SHORT_PATIENCE, str(patience)] if patience else ["-m", "tidegate_client"]
        command = [sys.executable, *program, "agent", "--agent-id", AGENT, "--root", str(root), *more]
        environment = os.environ | {
            "TIDEGATE_API_URL": api.url,
            "TIDEGATE_KEY": "key",
            "XDG_STATE_HOME": str(state),
            "XDG_CONFIG_HOME": str(state),
        }
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_half(root: Path, least: int = 200_000) -> Path:
    deadline = idle_clock() + 30
    while idle_clock() < deadline:
        for part in root.glob("data/.tidegate-*.part/*"):
            if part.stat().st_size > least:
                return part
        time.sleep(0.01)
    raise AssertionError("no download began")


def test_kill_9_during_a_download_then_restart_delivers_the_file(
    api: AgentApi, store: Store, root: Path, launch: Launch
) -> None:
    store.seconds_a_chunk = 0.05
    transfer = api.add("app.bin", CONTENT)
    first = launch()
    wait_for_half(root)
    first.kill()
    first.wait()
    assert not (root / "data/app.bin").exists()

    store.seconds_a_chunk = 0
    launch()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/app.bin").read_bytes() == CONTENT
    assert [path.name for path in (root / "data").iterdir()] == ["app.bin"]
    assert store.requests[-1][1], "the second run resumed the download"


@pytest.mark.parametrize(("signature", "code"), [(sha256(CONTENT), Code.DONE), ("f" * 64, Code.WRONG_CONTENT)])
def test_kill_9_before_the_report_still_reports_after_restart(
    api: AgentApi, store: Store, launch: Launch, signature: str, code: Code
) -> None:
    # A result is written to the journal before it is sent, so a refused one is in the journal.
    api.refuse_results = True
    transfer = api.add("app.bin", CONTENT, signature=signature)
    first = launch()
    deadline = idle_clock() + 30
    while not api.refused:
        assert idle_clock() < deadline
        time.sleep(0.02)
    first.kill()
    first.wait()

    api.refuse_results = False
    launch()

    assert api.wait_for(transfer)["error_code"] == code
    assert len(store.requests) == 1, "the result is reported, and the file is not downloaded again"


def test_sigterm_finishes_running_downloads(api: AgentApi, store: Store, root: Path, launch: Launch) -> None:
    store.seconds_a_chunk = 0.03
    transfer = api.add("app.bin", CONTENT)
    process = launch("--wait", "20")
    wait_for_half(root)

    process.send_signal(signal.SIGTERM)
    late = api.add("late.bin", CONTENT)

    assert ended(process) == 0
    assert api.finals(transfer)[0]["error_code"] == 0
    assert (root / "data/app.bin").read_bytes() == CONTENT
    assert api.finals(late) == []


def test_second_sigterm_stops_at_once_and_keeps_the_part_file(
    api: AgentApi, store: Store, root: Path, launch: Launch
) -> None:
    store.seconds_a_chunk = 0.2
    transfer = api.add("app.bin", CONTENT)
    process = launch()
    wait_for_half(root, least=60_000)

    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    began = idle_clock()
    process.send_signal(signal.SIGTERM)

    assert ended(process, 200) == 0
    assert idle_clock() - began < 8
    assert api.finals(transfer) == []
    assert list(root.glob("data/.tidegate-*.part/*"))


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_unreachable_store_shows_no_signature_in_the_log(
    api: AgentApi, store: Store, launch: Launch, log_format: str
) -> None:
    store.url, store.valid_token = f"http://127.0.0.1:{free_port()}", "X-Amz-Signature-5ec7e7"
    api.add("app.bin", CONTENT)
    process = launch("--log-format", log_format, patience=0.5)
    assert process.stderr
    lines: list[bytes] = []
    while not lines or b"stalled" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.kill()

    assert b"5ec7e7" not in b"".join(lines)
    assert b"/app.bin?" in lines[-1]


def test_refused_key_ends_the_process_with_exit_code_3(api: AgentApi, launch: Launch) -> None:
    api.key_status = 401

    assert ended(launch()) == 3
