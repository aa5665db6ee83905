"""`make test` prints how long each suite took."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support import suite_times


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
