"""Starting and stopping the emulator on a machine that is busy with other work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local import emulator
from local.emulator import Emulator
from local.place import Place
from local.progress import Failure
from tests.support.http_servers import free_port

# Starts after half a second; saves its state within half a second, and ends itself as the launcher does.
SLOW = """
import http.server, os, pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).touch()
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, save)
time.sleep(0.5)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    place = Place(home=tmp_path, port=free_port())
    popen = subprocess.Popen
    served = tmp_path / "_ministack"
    served.mkdir()
    (served / "health").touch()

    def start(_: object, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SLOW, str(tmp_path / "saved"), str(place.port)]
        return popen(command, **options | {"cwd": tmp_path})

    monkeypatch.setattr("local.emulator.subprocess.Popen", start)
    monkeypatch.setattr(emulator, "START_SECONDS", 0.1)
    monkeypatch.setattr(emulator, "STOP_SECONDS", 0.1)
    return Emulator(place)


def test_slow_start_and_stop_are_waited_for_on_a_busy_machine(
    slow: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "processes_per_core", lambda: 600.0)
    slow.start()
    assert slow.stop()
    assert (tmp_path / "saved").exists()


def test_emulator_killed_before_it_saved_is_told(
    slow: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "processes_per_core", lambda: 600.0)
    slow.start()
    monkeypatch.setattr(emulator, "STOP_SECONDS", 0)
    assert not slow.stop()
    assert not (tmp_path / "saved").exists()


def test_emulator_that_does_not_start_fails_on_an_idle_machine(slow: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "processes_per_core", lambda: 1.0)
    with pytest.raises(Failure, match="did not start"):
        slow.start()
