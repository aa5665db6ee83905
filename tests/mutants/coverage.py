"""Which tests run which lines of the product: recorded once, so that a mutant needs only the tests that can notice it.

`record` runs tests with this module as a pytest plugin. Processes that a test starts count as that test. Lines of a
file that was edited since are found by its recorded text. A recording that is stopped goes on with the tests that it
had not reached.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData
from coverage.exceptions import DataError

from tests.mutants.tree import ROOT
from tests.support.patience import idle_clock

SUITES = ("tests/unit", "tests/integration", "tests/workflow", "tests/faults")
PLACE = ROOT / ".local" / "mutants"
PRODUCT = ("layers/core/tidegate", "layers/client/tidegate_client")
_TEST, _START, _DATA = "MUTANTS_TEST", "COVERAGE_PROCESS_START", "MUTANTS_DATA"
_KNOWN, _FILES, _ENDED = "known.json", "files.json", "ended"
# They run processes of their own for minutes, and other tests run the same lines.
_WITHOUT = ("tests/integration/test_bench_sections.py", "tests/integration/test_bench_meter.py")
# Most tests of these suites wait for something: more processes than cores take less time.
PROCESSES = 3
# What a run has recorded is stored so often: all that a stopped one loses.
_SAVE_SECONDS = 20.0


class Recorder:
    """The plugin: lines by coverage.py, with the running test as their context; the seconds of each test beside."""

    def __init__(self, data: Path) -> None:
        self._coverage = Coverage(
            data_file=str(data / "lines"), data_suffix=True, config_file=False, source=_folders(), messages=False
        )
        self._seconds = data / f"seconds.{os.getpid()}"
        self._known = set(json.loads((data / _KNOWN).read_text()))
        self._failed: set[str] = set()
        self._unsaved: dict[str, float] = {}
        self._saved_at = time.monotonic()
        self._coverage.start()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = [item for item in items if item.nodeid in self._known]
        items[:] = [item for item in items if item.nodeid not in self._known]
        config.hook.pytest_deselected(items=known)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        os.environ[_TEST] = item.nodeid
        self._coverage.switch_context(item.nodeid)
        # As long as the test takes on an idle machine.
        began = idle_clock()
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            if item.nodeid not in self._failed:
                self._unsaved[item.nodeid] = round(idle_clock() - began, 3)
            if time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._save()

    def _save(self) -> None:
        # The lines first: a test with seconds counts as recorded.
        self._coverage.save()
        with self._seconds.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in self._unsaved.items())
        self._unsaved.clear()
        self._saved_at = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    """In each process that runs tests; the one that only gives them out has no lines to record."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if (data := os.environ.get(_DATA)) and runs_tests:
        config.pluginmanager.register(Recorder(Path(data)), "mutants-recorder")


def _folders() -> list[str]:
    return [str(ROOT / folder) for folder in PRODUCT]


def files_of_tests(below: Sequence[str]) -> list[str]:
    """The files of tests below these folders, or these files themselves."""
    found = (sorted(path.rglob("test_*.py")) if (path := ROOT / name).is_dir() else [path] for name in below)
    return [name for paths in found for path in paths if (name := str(path.relative_to(ROOT))) not in _WITHOUT]


def record(tests: Sequence[str], place: Path = PLACE, processes: int = PROCESSES) -> None:
    """Runs those tests below these folders that are not recorded as they are now, and stores which lines they run.

    One run for all of them: starting pytest and its processes takes longer than the tests of many a folder.
    """
    keep_stopped(place)
    recorded = Recorded(place)
    texts = {file: _digest(file) for file in files_of_tests(tests)}
    texts = {file: digest for file, digest in texts.items() if recorded.ended.get(file) != digest}
    if not texts:
        return
    run = place / f"run-{time.time_ns()}"
    run.mkdir(parents=True)
    (run / _FILES).write_text(json.dumps(texts))
    (run / _KNOWN).write_text(json.dumps(recorded.tests_of(texts)))
    # A process that a test starts reads this file; the test is in its environment.
    settings = run / "coveragerc"
    settings.write_text(
        f"[run]\nparallel = true\ndata_file = {run}/lines\ncontext = ${{{_TEST}-}}\nsource =\n"
        + "".join(f"    {product}\n" for product in _folders())
    )
    for folder in PRODUCT:
        shutil.copytree(ROOT / folder, run / "sources" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {_DATA: str(run), _START: str(settings)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.coverage", "-n", str(processes)]
    command += ["--dist", "worksteal", "--timeout", "900", *texts]
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        (run / _ENDED).touch()
    keep_stopped(place)


def _digest(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def keep_stopped(place: Path = PLACE) -> None:
    """Stores what runs that ended or were stopped have recorded so far."""
    for run in sorted(place.glob("run-*")):
        _store(run, place / run.name.replace("run", "chunk"))


def _store(run: Path, chunk: Path) -> None:
    seconds = dict(json.loads(line) for file in run.glob("seconds.*") for line in file.read_text().splitlines())
    if seconds:
        shutil.rmtree(chunk, ignore_errors=True)
        chunk.mkdir(parents=True)
        combined = CoverageData(str(chunk / "lines"))
        for file in run.glob("lines.*"):
            part = CoverageData(str(file))
            try:
                part.read()
                combined.update(part)
            except DataError:
                continue  # of a process that was killed
        combined.write()
        for kept in ("sources", _FILES, _ENDED):
            if (run / kept).exists():
                (run / kept).rename(chunk / kept)
        (chunk / "seconds.json").write_text(json.dumps(seconds))
    shutil.rmtree(run)


class Recorded:
    """What was recorded in all runs."""

    def __init__(self, place: Path = PLACE) -> None:
        stored = sorted(place.glob("*/seconds.json"), key=lambda path: path.stat().st_mtime)
        self._chunks = [_Chunk(path.parent) for path in stored]
        self.seconds = {test: spent for chunk in self._chunks for test, spent in chunk.seconds.items()}
        self._latest = {test: chunk for chunk in self._chunks for test in chunk.seconds}
        # The files of which all tests are recorded, each with the digest of its text at that time.
        self.ended = {file: digest for chunk in self._chunks if chunk.ended for file, digest in chunk.files.items()}

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """The tests that run one of these lines of the present source."""
        return sorted(
            test for chunk in self._chunks for test in chunk.tests(file, first, last) if self._latest[test] is chunk
        )

    def tests_of(self, texts: Mapping[str, str]) -> list[str]:
        """The recorded tests of these files, if the file had the same digest then."""
        return sorted(
            test
            for test, chunk in self._latest.items()
            if (file := test.partition("::")[0]) in texts and chunk.files.get(file) == texts[file]
        )

    def lines(self, file: str) -> Counter[str]:
        """How many lines of the file each test runs."""
        return Counter(test for chunk in self._chunks for run_by in chunk.of_file(file).values() for test in run_by)


class _Chunk:
    """The lines that the tests of one run run, and the product's source at that time."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.seconds: dict[str, float] = json.loads((place / "seconds.json").read_text())
        files = place / _FILES
        self.files: dict[str, str] = json.loads(files.read_text()) if files.exists() else {}
        self.ended = (place / _ENDED).exists()
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
