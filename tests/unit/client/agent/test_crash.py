"""kill -9 between any two steps of a delivery: no result is lost, no file is partial, no old content replaces new."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.patience import ended, idle_clock
from tests.unit.client.fakes import AGENT, AgentApi, sha256
from tidegate_client.agent.preheat import iso

OLDEST, OLDER, NEW = (random.Random(seed).randbytes(200_000) for seed in (1, 2, 3))
STEPS = [
    "close the part's directory",
    "write",
    "chown",
    "chmod",
    "fsync file",
    "journal the sequence",
    "rename",
    "fsync directory",
    "remove the part's directory",
    "journal the result",
    "report the result",
    "acknowledge",
]
# The same for a file that is put in place an hour later.
STAGING = [
    "close the part's directory",
    "write",
    "fsync file",
    "fsync directory",
    "fsync directory#2",
    "journal the staged file",
    "report the staging",
]
SWITCHING = [
    "chown",
    "chmod",
    "fsync file#2",
    "journal the sequence",
    "rename",
    "fsync directory#3",
    "remove the part's directory",
    "journal the result",
    "forget the staged file",
    "report the result",
    "acknowledge",
]
Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(api: AgentApi, root: Path, tmp_path: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[bytes]] = []

    def start(kill_before: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.unit.client.agent.self_killing_agent", "agent", "--agent-id", AGENT]
        command += ["--root", str(root), "--state-dir", str(tmp_path / "state"), "--wait", "1"]
        environment = os.environ | {"TIDEGATE_API_URL": api.url, "TIDEGATE_KEY": "key", "KILL_BEFORE": kill_before}
        environment |= {"STEPS": str(tmp_path / "steps"), "CLOCK": str(tmp_path / "clock")}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def target(root: Path) -> Path:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(OLDEST)
    return root / "data/f"


def add(api: AgentApi, content: bytes, sequence: int) -> str:
    api.store.objects[sha256(content)] = content
    return api.add("f", content, object=sha256(content), sequence=sequence)


def add_ahead(api: AgentApi, content: bytes, sequence: int) -> str:
    transfer = add(api, content, sequence)
    times = {"activate_at": iso(time.time() + 3600), "activate_until": iso(time.time() + 4200)}
    api.transfers[transfer] |= times
    return transfer


def wait_for_step(tmp_path: Path, step: str) -> list[str]:
    deadline, steps = idle_clock() + 20, tmp_path / "steps"
    while not steps.exists() or step not in (done := steps.read_text().splitlines()):
        assert idle_clock() < deadline
        time.sleep(0.02)
    return done


def wait_for_clean_up(target: Path) -> None:
    """What a killed agent left goes with the first sweep, a second after the start."""
    deadline = idle_clock() + 20
    while [path.name for path in target.parent.iterdir()] != [target.name]:
        assert idle_clock() < deadline, list(target.parent.iterdir())
        time.sleep(0.05)


def pass_an_hour(tmp_path: Path) -> None:
    (tmp_path / "clock.new").write_text("3601")
    (tmp_path / "clock.new").replace(tmp_path / "clock")


def staging_reported(api: AgentApi) -> bool:
    return any(one.get("staged_at") for one in api.results)


def test_steps_of_a_delivery_are_in_crash_safe_order(
    api: AgentApi, launch: Launch, target: Path, tmp_path: Path
) -> None:
    transfer = add(api, NEW, 2)
    process = launch()
    api.wait_for(transfer)
    deadline = idle_clock() + 10
    while "acknowledge" not in (tmp_path / "steps").read_text():
        assert idle_clock() < deadline
        time.sleep(0.02)
    process.terminate()
    ended(process)

    assert (tmp_path / "steps").read_text().splitlines()[: len(STEPS)] == STEPS
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("step", STEPS)
def test_kill_before_any_step_then_restart_delivers_and_reports(
    api: AgentApi, launch: Launch, target: Path, step: str
) -> None:
    transfer = add(api, NEW, 2)
    assert ended(launch(step)) == -9
    assert target.read_bytes() in (OLDEST, NEW)
    assert (target.read_bytes() == NEW) == (STEPS.index(step) > STEPS.index("rename"))

    launch()

    assert api.wait_for(transfer)["error_code"] == 0
    assert target.read_bytes() == NEW
    wait_for_clean_up(target)
    older = add(api, OLDER, 1)
    assert api.wait_for(older)["error_code"] == 409
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("step", STEPS[STEPS.index("rename") :])
def test_kill_then_older_transfer_without_the_newer_one_is_refused(
    api: AgentApi, launch: Launch, target: Path, step: str
) -> None:
    """The Job of the newer transfer timed out while the host was down: only the journal has a record of it."""
    newer = add(api, NEW, 2)
    assert ended(launch(step)) == -9
    left = target.read_bytes()
    api.transfers.pop(newer)
    older = api.add("f", OLDER, object=sha256(OLDER), sequence=1, transfer_id="tr-older")
    api.store.objects[sha256(OLDER)] = OLDER
    api.transfers["tr-older"] = api.transfers.pop(older)

    launch()

    assert api.wait_for("tr-older")["error_code"] == 409
    assert target.read_bytes() == left


def test_steps_of_a_staged_delivery_are_in_crash_safe_order(
    api: AgentApi, launch: Launch, target: Path, tmp_path: Path
) -> None:
    transfer = add_ahead(api, NEW, 2)
    launch()
    assert wait_for_step(tmp_path, STAGING[-1]) == STAGING
    assert target.read_bytes() == OLDEST
    pass_an_hour(tmp_path)
    assert api.wait_for(transfer)["error_code"] == 0
    done = wait_for_step(tmp_path, "acknowledge")[len(STAGING) :]

    until_result = SWITCHING.index("forget the staged file")
    assert done[:until_result] == SWITCHING[:until_result]
    assert sorted(done[until_result:]) == sorted(SWITCHING[until_result:]), "two threads: in either order"
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("step", STAGING)
def test_kill_while_staging_then_restart_switches_at_its_time(
    api: AgentApi, launch: Launch, target: Path, tmp_path: Path, step: str
) -> None:
    transfer = add_ahead(api, NEW, 2)
    assert ended(launch(step)) == -9
    assert target.read_bytes() == OLDEST

    launch()

    deadline = idle_clock() + 20
    while not staging_reported(api):
        assert idle_clock() < deadline
        time.sleep(0.02)
    assert target.read_bytes() == OLDEST
    assert len(list(target.parent.iterdir())) == 2, "the file and the staged one"
    pass_an_hour(tmp_path)
    assert api.wait_for(transfer)["error_code"] == 0
    assert target.read_bytes() == NEW
    wait_for_clean_up(target)


@pytest.mark.parametrize("step", SWITCHING)
def test_kill_while_switching_then_restart_ends_with_the_new_file(
    api: AgentApi, launch: Launch, target: Path, tmp_path: Path, step: str
) -> None:
    transfer = add_ahead(api, NEW, 2)
    process = launch(step)
    wait_for_step(tmp_path, STAGING[-1])
    pass_an_hour(tmp_path)
    assert ended(process) == -9
    assert (target.read_bytes() == NEW) == (SWITCHING.index(step) > SWITCHING.index("rename"))

    launch()

    assert api.wait_for(transfer)["error_code"] == 0
    assert target.read_bytes() == NEW
    wait_for_clean_up(target)
    assert len(api.store.requests) == 1, "it was fetched once"
    older = add(api, OLDER, 1)
    assert api.wait_for(older)["error_code"] == 409


def test_kill_while_staged_then_cancel_removes_the_staged_file(
    api: AgentApi, launch: Launch, target: Path, tmp_path: Path
) -> None:
    transfer = add_ahead(api, NEW, 2)
    process = launch()
    wait_for_step(tmp_path, STAGING[-1])
    process.kill()
    process.wait()
    api.transfers.pop(transfer)
    pass_an_hour(tmp_path)

    launch()

    deadline = idle_clock() + 20
    while len(list(target.parent.iterdir())) > 1:
        assert idle_clock() < deadline
        time.sleep(0.05)
    assert target.read_bytes() == OLDEST
