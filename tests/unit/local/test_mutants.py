"""`make mutants`: each deliberate fault still fits the source that it changes, and the run tells who noticed it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants import __main__ as command
from tests.mutants import coverage, sample
from tests.mutants.catalog import MUTANTS, Mutant
from tests.mutants.coverage import Recorded
from tests.mutants.draw import Drawn, candidates, draw
from tests.mutants.table import Row, Table, state_of
from tests.mutants.tree import DoesNotApply, changed, fault, missing_tests
from tests.mutants.trial import Outcome
from tests.support.template import ROOT

SUM = Mutant("sums are off by one", "product.py", "a + b", "a + b + 1", ("test_product.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "product.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_product.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_and_its_tests_exist(mutant: Mutant) -> None:
    assert changed(mutant) != (ROOT / mutant.file).read_text()
    assert missing_tests(mutant) == []


def test_names_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_fault_is_in_the_tree_only_during_the_trial(tree: Path) -> None:
    path = tree / SUM.file
    source, changed_at = path.read_text(), path.stat().st_mtime_ns

    with fault((SUM.file, changed(SUM, tree)), tree):
        assert "a + b + 1" in path.read_text()
        assert path.stat().st_mtime_ns - changed_at > 10**9, "a compiled module without the fault would be used"

    assert (path.read_text(), path.stat().st_mtime_ns) == (source, changed_at)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file": "moved.py"}, "moved.py does not exist"),
        ({"old": "a - b"}, "has the text to replace 0 times"),
        ({"old": "a"}, "has the text to replace 3 times"),
        ({"new": "a +"}, "does not compile with the fault"),
    ],
)
def test_mutant_that_does_not_fit_the_source_is_an_error(tree: Path, change: dict[str, str], said: str) -> None:
    mutant = SUM._replace(**change)  # type: ignore[arg-type]

    with pytest.raises(DoesNotApply, match=said):
        changed(mutant, tree)
    killer, why = command.try_mutant(mutant, tree)

    assert (killer, why[:14]) == ("", "DOES NOT APPLY")
    assert said in why


def test_mutant_whose_tests_moved_is_an_error(tree: Path) -> None:
    killer, why = command.try_mutant(SUM._replace(tests=("test_moved.py",)), tree)

    assert killer == ""
    assert "test_moved.py does not exist" in why


NOTICED = Outcome(failed="test_product.py::test_add")


@pytest.mark.parametrize(
    ("with_fault", "without", "result"),
    [
        (NOTICED, Outcome(), (NOTICED.failed, "")),
        (Outcome(), Outcome(), ("", command.SURVIVED)),
        (NOTICED, NOTICED, ("", "test_product.py::test_add fails without the fault too")),
        (Outcome(trouble="no such test"), Outcome(), ("", "no such test")),
    ],
)
def test_only_a_test_that_passes_without_the_fault_counts(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_fault: Outcome,
    without: Outcome,
    result: tuple[str, str],
) -> None:
    def run(tests: object, tree: Path, change: object = None) -> Outcome:
        return with_fault if change else without

    monkeypatch.setattr(command, "run_tests", run)

    assert command.try_mutant(SUM, tree) == result


def test_last_killer_is_run_first_and_the_rest_only_if_it_passes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []

    def run(tests: list[str], tree: Path, change: object = None) -> Outcome:
        runs.append(list(tests))
        return NOTICED if change and len(runs) > 1 else Outcome()

    monkeypatch.setattr(command, "run_tests", run)

    assert command.try_mutant(SUM, tree, "test_product.py::test_old") == (NOTICED.failed, "")
    assert runs == [["test_product.py::test_old"], ["test_product.py"], [NOTICED.failed]]


def test_killed_mutant_is_tried_again_when_it_or_its_file_changed(tmp_path: Path) -> None:
    table, mutant = Table(tmp_path / "mutants.jsonl"), MUTANTS[0]
    table.add(Row(mutant.name, state_of(mutant), killer="tests/a.py::test_b"))

    kept = Table(table.path)

    assert kept.killed(mutant)
    assert kept.last_killer(mutant) == "tests/a.py::test_b"
    assert not kept.killed(mutant._replace(new="pass"))
    assert not kept.killed(MUTANTS[1])
    kept.add(Row(mutant.name, state_of(mutant), why=command.SURVIVED))
    assert not Table(table.path).killed(mutant)
    assert "**SURVIVED**" in command.shown([mutant], kept)


# --- random mutants


@pytest.fixture(scope="module")
def every() -> list[Drawn]:
    """All that can be drawn: to find them takes some seconds."""
    return list(candidates())


def test_same_seed_draws_the_same_mutants_of_every_kind() -> None:
    drawn = draw(20, seed=3)

    assert [one.name for one in drawn] == [one.name for one in draw(20, seed=3)]
    assert len({one.kind for one in drawn}) == 10
    assert all(one.diff() for one in drawn)
    queue = draw(20, seed=3, only=["layers/core/tidegate/queue/"])
    assert {Path(one.file).parent.name for one in queue} == {"queue"}


def test_every_mutant_has_a_name_of_its_own(every: list[Drawn]) -> None:
    """Verdicts are kept by name: of two with one name, one would never be tried."""
    names = [one.name for one in every]

    assert len(set(names)) == len(names)


def test_drawn_conditions_are_well_formed(every: list[Drawn]) -> None:
    """One that DynamoDB refuses as malformed is noticed by any test, and says nothing about the suite."""
    malformed = re.compile(r"\(\s*(?:AND|OR)\b|\b(?:AND|OR)\s*(?:\)|AND\b|OR\b)")

    assert [one.name for one in every if one.kind == "condition" and malformed.search(one.new)] == []


@pytest.mark.parametrize(
    ("killed", "trials", "low", "high"), [(52, 60, 0.758, 0.931), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0)]
)
def test_interval_of_a_share_is_wilsons(killed: int, trials: int, low: float, high: float) -> None:
    assert sample.wilson(killed, trials) == pytest.approx((low, high), abs=0.001)


def test_equivalent_mutants_have_a_reason_and_still_exist(every: list[Drawn]) -> None:
    known = {one.name for one in every}

    assert {name for name, reason in sample.equivalent().items() if name not in known or len(reason) < 20} == set()


def test_tests_of_an_edited_file_are_found_by_its_recorded_text(tmp_path: Path) -> None:
    place = tmp_path / "chunk"
    file = "layers/core/tidegate/common/ids.py"
    source = (ROOT / file).read_text()
    (place / "sources" / file).parent.mkdir(parents=True)
    (place / "sources" / file).write_text("# one line more\n" + source)
    (place / "seconds.json").write_text('{"tests/test_ids.py::test_one": 0.5}')
    data = CoverageData(str(place / "lines"))
    data.set_context("tests/test_ids.py::test_one")
    data.add_lines({str(ROOT / file): [11]})
    data.write()

    recorded = Recorded(tmp_path)

    assert recorded.tests(file, 10, 10) == ["tests/test_ids.py::test_one"]
    assert recorded.tests(file, 11, 11) == []


def test_recording_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "tests/unit/common/test_schedules.py", "tests/unit/common/test_sha256.py"
    runs: list[tuple[list[str], list[str]]] = []
    ends = iter([(["::first"], pytest.ExitCode.INTERRUPTED), (["::second"], pytest.ExitCode.OK)])

    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        place = Path(env["MUTANTS_DATA"])
        known = json.loads((place / "known.json").read_text())
        runs.append(([part for part in command if part.endswith(".py")], known))
        tests, code = next(ends)
        (place / "seconds.1").write_text("".join(f'["{one}{test}", 0.5]\n' for test in tests))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(3):
        coverage.record([one, two], tmp_path)

    # The third one finds nothing left.
    assert runs == [([one, two], []), ([one, two], [f"{one}::first"])]
    assert set(Recorded(tmp_path).seconds) == {f"{one}::first", f"{one}::second"}
    edited = Recorded(tmp_path).tests_of({one: "another text"})
    assert edited == []


def test_run_that_was_killed_keeps_what_it_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run-1"
    run.mkdir()
    (run / "seconds.1").write_text('["tests/test_ids.py::test_one", 0.5]\n')
    (run / "lines.broken").write_bytes(b"half a data base")

    coverage.keep_stopped(tmp_path)

    assert Recorded(tmp_path).seconds == {"tests/test_ids.py::test_one": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["chunk-1"]


@pytest.mark.parametrize(
    ("folder", "near", "far"),
    [
        ("layers/core/tidegate/batches/", "tests/workflow/test_batch_machine.py", "tests/integration/queue"),
        ("layers/core/tidegate/queue/", "tests/integration/queue/test_admission.py", "tests/unit/swarm"),
        ("layers/client/tidegate_client/agent/", "tests/unit/client/agent/test_agent.py", "tests/unit/batches"),
    ],
)
def test_tests_of_a_capability_are_recorded_first(folder: str, near: str, far: str) -> None:
    found = sample.near_files(draw(1, seed=1, only=[folder])[0])

    assert near in found
    assert not [test for test in found if test.startswith(far)]


def test_survivor_of_its_own_tests_is_tried_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = draw(2, seed=1, only=["layers/core/tidegate/queue/"])
    verdicts = sample.Verdicts(tmp_path / "seed-1.jsonl")
    recorded: list[object] = []
    tried: list[tuple[list[str], bool]] = []

    def try_all(some: list[Drawn], found: sample.Verdicts, processes: int, near: bool) -> None:
        tried.append(([one.name for one in some], near))
        for one in some:
            killer = "" if one is mutants[0] else "tests/test_queue.py::test_one"
            found.add(sample.Verdict(one.name, killer, "", 1.0, near))

    monkeypatch.setattr(sample, "record", lambda tests, **_: recorded.append(tests))
    monkeypatch.setattr(sample, "keep_stopped", lambda: None)
    monkeypatch.setattr(sample, "try_all", try_all)
    for near in (True, False, False):
        sample.try_drawn(mutants, verdicts, 1, near, again=False)

    names = [one.name for one in mutants]
    assert [each for each in tried if each[0]] == [(names, True), (names[:1], False)]
    assert recorded == [sorted(sample.near_files(mutants[0])), coverage.SUITES]
    assert "1 of 2 killed" in sample.report(mutants, verdicts, 1)
    assert "2 are not tried yet" in sample.report(mutants, sample.Verdicts(tmp_path / "none"), 1)
