"""Which tests run which lines of the product: recorded once, so that a mutant needs only the tests that can notice it.

`python -m tests.mutants.sample record` runs the folders of tests with this module as a pytest plugin. Processes that
a test starts count as that test. Lines of a file that was edited since are found by its recorded text.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tests.mutants.tree import ROOT

SUITES = ("tests/unit", "tests/integration", "tests/workflow", "tests/faults")
PLACE = ROOT / ".local" / "mutants"
PRODUCT = ("layers/core/tidegate", "layers/client/tidegate_client")
_TEST, _START, _DATA = "MUTANTS_TEST", "COVERAGE_PROCESS_START", "MUTANTS_DATA"
# They run processes of their own for minutes, and other tests run the same lines.
_WITHOUT = ("tests/integration/test_bench_sections.py", "tests/integration/test_bench_meter.py")
# Most tests of these suites wait for something; more processes than cores record them in less time.
_PROCESSES = 4


class Recorder:
    """The plugin: lines by coverage.py, with the running test as their context; the seconds of each test beside."""

    def __init__(self, data: Path) -> None:
        self._coverage = Coverage(
            data_file=str(data / "lines"), data_suffix=True, config_file=False, source=_folders(), messages=False
        )
        self._seconds = data / f"seconds.{os.getpid()}"
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        os.environ[_TEST] = item.nodeid
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            if item.nodeid not in self._failed:
                with self._seconds.open("a") as file:
                    file.write(json.dumps([item.nodeid, round(time.monotonic() - began, 3)]) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def pytest_configure(config: pytest.Config) -> None:
    """In each process that runs tests; the one that only gives them out has no lines to record."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if (data := os.environ.get(_DATA)) and runs_tests:
        config.pluginmanager.register(Recorder(Path(data)), "mutants-recorder")


def _folders() -> list[str]:
    return [str(ROOT / folder) for folder in PRODUCT]


def record(folder: str, place: Path = PLACE) -> None:
    """Runs the tests below a folder and stores what each of them runs, with the product's source as it is now.

    One run for the whole folder: starting pytest and its processes takes longer than the tests of many a folder.
    """
    run = place / f"run-{time.time_ns()}"
    run.mkdir(parents=True)
    # A process that a test starts reads this file; the test is in its environment.
    settings = run / "coveragerc"
    settings.write_text(
        f"[run]\nparallel = true\ndata_file = {run}/lines\ncontext = ${{{_TEST}-}}\nsource =\n"
        + "".join(f"    {product}\n" for product in _folders())
    )
    environment = os.environ | {_DATA: str(run), _START: str(settings)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.coverage", "-n", str(_PROCESSES)]
    command += ["--dist", "worksteal", "--timeout", "900", *(f"--ignore={each}" for each in _WITHOUT), folder]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    _store(run, place / folder.replace("/", "-"))


def _store(run: Path, chunk: Path) -> None:
    shutil.rmtree(chunk, ignore_errors=True)
    chunk.mkdir(parents=True)
    combined = CoverageData(str(chunk / "lines"))
    for file in run.glob("lines.*"):
        part = CoverageData(str(file))
        part.read()
        combined.update(part)
    combined.write()
    seconds = dict(json.loads(line) for file in run.glob("seconds.*") for line in file.read_text().splitlines())
    (chunk / "seconds.json").write_text(json.dumps(seconds))
    for folder in PRODUCT:
        shutil.copytree(ROOT / folder, chunk / "sources" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(run)


class Recorded:
    """What was recorded of all folders."""

    def __init__(self, place: Path = PLACE) -> None:
        self._chunks = [_Chunk(path.parent) for path in sorted(place.glob("*/seconds.json"))]
        self.seconds = {test: spent for chunk in self._chunks for test, spent in chunk.seconds.items()}

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """The tests that run one of these lines of the present source."""
        return sorted({test for chunk in self._chunks for test in chunk.tests(file, first, last)})

    def lines(self, file: str) -> Counter[str]:
        """How many lines of the file each test runs."""
        return Counter(test for chunk in self._chunks for run_by in chunk.of_file(file).values() for test in run_by)


class _Chunk:
    """The lines that the tests of one folder run."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.seconds: dict[str, float] = json.loads((place / "seconds.json").read_text())
        self._data = CoverageData(str(place / "lines"))
        self._data.read()
        self.of_file = cache(self._contexts)
        self._blocks_of = cache(self._blocks)

    def tests(self, file: str, first: int, last: int) -> set[str]:
        lines = {self._recorded(file, line) for line in range(first, last + 1)} - {0}
        contexts = self.of_file(file) if lines else {}
        return {test for line in lines for test in contexts.get(line, []) if test in self.seconds}

    def _contexts(self, file: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(str(ROOT / file))

    def _recorded(self, file: str, line: int) -> int:
        """The number that this line had when it was recorded; 0 for a new line."""
        return next((was + line - now for was, now, size in self._blocks_of(file) if now < line <= now + size), 0)

    def _blocks(self, file: str) -> list[tuple[int, int, int]]:
        recorded = self._place / "sources" / file
        if not recorded.is_file():
            return []
        was, now = recorded.read_text().splitlines(), (ROOT / file).read_text().splitlines()
        if was == now:
            return [(0, 0, len(now))]
        blocks = difflib.SequenceMatcher(None, was, now, autojunk=False).get_matching_blocks()
        return [(block.a, block.b, block.size) for block in blocks]
