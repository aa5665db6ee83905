"""`make mutants`: each deliberate fault still fits the source that it changes, and the run tells who noticed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.catalog import MUTANTS, Mutant
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

    with fault(SUM, tree):
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
    def run(tests: object, tree: Path, mutant: Mutant | None = None) -> Outcome:
        return with_fault if mutant else without

    monkeypatch.setattr(command, "run_tests", run)

    assert command.try_mutant(SUM, tree) == result


def test_last_killer_is_run_first_and_the_rest_only_if_it_passes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []

    def run(tests: list[str], tree: Path, mutant: Mutant | None = None) -> Outcome:
        runs.append(list(tests))
        return NOTICED if mutant and len(runs) > 1 else Outcome()

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
