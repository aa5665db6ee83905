"""Progress where people wait: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from local import progress
from tests.support.patience import ended
from tests.support.template import ROOT

COMMAND = [sys.executable, str(ROOT / "local/progress.py"), "some step", "60"]
SLOW = [sys.executable, "-c", "import time; print('fetching a', flush=True); time.sleep(1.2)"]


def on_a_terminal(command: list[str], cwd: Path) -> str:
    reader, writer = pty.openpty()
    process = subprocess.Popen(command, cwd=cwd, stdout=writer, env={**os.environ, "COLUMNS": "80"})
    os.close(writer)
    shown = b""
    while True:
        try:
            found = os.read(reader, 4096)
        except OSError:
            break
        if not found:
            break
        shown += found
    os.close(reader)
    assert ended(process) == 0
    return shown.decode()


def test_terminal_shows_a_moving_line_with_the_time_left(tmp_path: Path) -> None:
    shown = on_a_terminal([*COMMAND, *SLOW], tmp_path)

    assert "  … some step: fetching a  0:00, about 0:5" in shown
    assert shown.count("\n") == 1, "only the last line stays"
    assert shown.splitlines()[-1].strip().startswith(f"{progress.ERASE.strip()}  ✓ some step")


def test_second_time_is_estimated_by_the_first(tmp_path: Path) -> None:
    on_a_terminal([*COMMAND, *SLOW], tmp_path)
    assert 1 <= (progress.usual_seconds("some step", None, tmp_path / ".local/times") or 0) < 20


def test_without_a_terminal_two_plain_lines_are_printed(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, *SLOW], cwd=tmp_path, capture_output=True, text=True, check=True)
    began, ended = done.stdout.splitlines()
    assert began == "  … some step"
    assert ended.startswith("  ✓ some step")
    assert "\x1b" not in done.stdout


def test_command_that_fails_shows_what_it_printed(tmp_path: Path) -> None:
    command = [*COMMAND, sys.executable, "-c", "print('no route to host'); raise SystemExit(3)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.splitlines()[1:] == ["no route to host", "  ✗ some step"]
    assert not (tmp_path / ".local").exists(), "a failure is no estimate"


def test_step_that_fails_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), progress.step("deployed"):
        raise KeyError
    assert capsys.readouterr().out == "  ✗ deployed\n"
