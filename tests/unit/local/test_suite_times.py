"""`make test` prints how long each suite took."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import suite_times
from tests.support.template import ROOT


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_every_suite_is_reported_slowest_first_also_after_a_failure(tmp_path: Path) -> None:
    assert suite_times.run("quick", python("raise SystemExit(3)"), tmp_path) == 3
    assert suite_times.run("slow", python("import time; time.sleep(1)"), tmp_path) == 0

    assert [line.split()[0] for line in suite_times.report(tmp_path).splitlines()] == ["slow", "quick"]

    suite_times.forget(tmp_path)
    assert suite_times.report(tmp_path) == ""


def test_command_inherits_the_descriptors_of_the_job_server(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        assert suite_times.run("suite", python(f"import os; os.write({writer}, b'token')"), tmp_path) == 0
        assert os.read(reader, 10) == b"token"
    finally:
        os.close(reader)
        os.close(writer)


def test_time_left_counts_the_slowest_suite_of_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_times, "usual_seconds", lambda _name, otherwise: otherwise)
    stages: Any = ({"lint": 30, "types": 60}, {"unit": 100})
    monkeypatch.setattr(suite_times, "STAGES", stages)
    assert suite_times.seconds_left(1000, tmp_path) == 160

    (tmp_path / "lint").write_text("20")
    (tmp_path / "types.began").write_text("990")
    assert suite_times.seconds_left(1000, tmp_path) == 150
    assert suite_times.line(1000, tmp_path) == "  … 1 of 3 suites ended  types 0:10  about 2:30 left"

    (tmp_path / "types").write_text("70")
    (tmp_path / "unit.began").write_text("500")
    assert suite_times.seconds_left(1000, tmp_path) == 0, "a suite that takes longer than usual"
    assert "began" not in suite_times.report(tmp_path)


def test_every_suite_of_make_test_has_an_estimate() -> None:
    timed = set(re.findall(r"timed-([a-z0-9-]+)", (ROOT / "Makefile").read_text("utf-8")))
    assert timed == {name for stage in suite_times.STAGES for name in stage}


def test_watcher_ends_with_its_parent_and_says_what_began(tmp_path: Path) -> None:
    (tmp_path / "unit.began").write_text("0")
    code = f"from pathlib import Path; from tests.support import suite_times as s; s.watch(Path({str(tmp_path)!r}))"
    shell = f'{sys.executable} -c "{code}" & sleep 3'
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["  … unit"]
