"""`make run` leaves no temporary folder and no process behind, even if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from local.cloud import cloud_up
from local.emulator import port_in_use
from local.place import ROOT, Place
from local.progress import silence
from tests.support.deployed import Deployed
from tests.support.http_servers import free_port
from tests.support.patience import idle_clock


def processes_with(text: str) -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in words and int(entry.name) != os.getpid():
            pids.append(int(entry.name))
    return pids


def gone(place: Place, seconds: float) -> bool:
    deadline = idle_clock() + seconds
    while processes_with(str(place.home)) or port_in_use(place.port):
        if idle_clock() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_stop_leaves_nothing_behind_and_next_start_deploys_nothing(tmp_path: Path) -> None:
    place = Place(home=tmp_path / "cloud", port=free_port())
    with cloud_up(place, silence) as up:
        assert Deployed(up).http("GET", "/healthz").status == 200
        assert any(place.temporary_dir.iterdir()), "functions unpack their code here"
    assert not place.temporary_dir.exists()
    assert gone(place, 3)

    lines: list[str] = []
    with cloud_up(place, lines.append) as up:
        assert Deployed(up).http("GET", "/healthz").status == 200
    assert any("nothing to deploy" in line for line in lines)


def test_killed_parent_leaves_no_process_and_next_start_clears_its_folder(tmp_path: Path) -> None:
    place = Place(home=tmp_path / "cloud", port=free_port())
    code = (
        "import sys, time; from pathlib import Path; from local.cloud import cloud_up; from local.place import Place\n"
        "with cloud_up(Place(home=Path(sys.argv[1]), port=int(sys.argv[2]))):\n"
        "    print('UP', flush=True)\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(place.home), str(place.port)]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    while "UP" not in parent.stdout.readline():
        assert parent.poll() is None
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    assert gone(place, 25), processes_with(str(place.home))
    left = place.temporary_dir / "left-by-a-killed-one"
    left.mkdir(parents=True, exist_ok=True)
    with cloud_up(place, silence):
        assert not left.exists()
    assert not place.temporary_dir.exists()
