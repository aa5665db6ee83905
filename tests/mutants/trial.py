"""Runs the tests of a mutant in a forked process, so that libraries are imported once and the product in each fork."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.mutants.tree import PACKAGES, ROOT, fault

# A bug may make the product wait for ever. No test of a mutant takes so long without a bug.
_TEST_SECONDS = 300
_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
_LIBRARIES = (
    "aws_lambda_powertools.event_handler.openapi.models",
    "boto3",
    "hypothesis",
    "moto.backends",
    "moto.dynamodb.responses",
    "moto.s3.responses",
    "moto.sns.responses",
    "moto.sqs.responses",
    "moto.stepfunctions.parser.api",
    "moto.stepfunctions.responses",
    "openpyxl",
    "pydantic",
    "pytest_httpserver",
)


@dataclass(frozen=True)
class Outcome:
    """`failed` is the first test that failed; `trouble` is the reason why the tests could not run."""

    failed: str = ""
    trouble: str = ""


class _First:
    """A pytest plugin that records the first failure."""

    def __init__(self, tests: Sequence[str], seconds: Callable[[str], float]) -> None:
        self._order = {test: number for number, test in enumerate(tests) if "::" in test}
        self._seconds = seconds
        self.failed = ""
        self.trouble = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order:
            items[:] = sorted(
                (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
            )
        for item in items:
            item.add_marker(pytest.mark.timeout(self._seconds(item.nodeid)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.trouble:
            self.trouble = f"{report.nodeid} could not be imported: {report.longreprtext[-300:]}"


def import_libraries() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)


def run_tests(
    tests: Sequence[str],
    tree: Path,
    change: tuple[str, str] | None = None,
    seconds: Callable[[str], float] = lambda _: _TEST_SECONDS,
) -> Outcome:
    """The outcome of these tests in that tree with a changed file. `seconds` is how long each test may take."""
    with fault(change, tree):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            # Bytecode that was compiled with the bug must not be used after it is removed.
            sys.dont_write_bytecode = change is not None
            _run_and_exit(tests, tree, write, seconds)
        os.close(write)
        with os.fdopen(read) as result:
            text = result.read()
        os.waitpid(child, 0)
    return Outcome(**json.loads(text)) if text else Outcome(trouble="the test process was killed")


def _run_and_exit(tests: Sequence[str], tree: Path, write: int, seconds: Callable[[str], float]) -> None:
    outcome = Outcome()
    try:
        _move_to(tree)
        first = _First(tests, seconds)
        # Files rather than tests: pytest runs nothing if one of the tests no longer exists.
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        code = pytest.main(["-q", "-x", "-n", "0", *files], plugins=[first])
        trouble = first.trouble
        if not trouble and code not in _RAN:
            trouble = f"pytest ended with {code!r}"
        outcome = Outcome("" if trouble else first.failed, trouble)
    except BaseException:
        outcome = Outcome(trouble=traceback.format_exc()[-300:])
    finally:
        with os.fdopen(write, "w") as result:
            result.write(json.dumps(asdict(outcome)))
        # Skips the exit handlers of the parent process.
        os._exit(0)


def _move_to(tree: Path) -> None:
    """This process, and those that it starts, import the product and the tests from that tree from now on."""
    os.chdir(tree)
    here = {str((ROOT / name).resolve()) for name in PACKAGES}
    sys.path[:] = [entry for entry in sys.path if entry and str(Path(entry).resolve()) not in here]
    sys.path[:0] = [str(tree / name) for name in PACKAGES]
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "local"}]:
        del sys.modules[name]
    importlib.invalidate_caches()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[: len(PACKAGES)])
    if sys.dont_write_bytecode:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
