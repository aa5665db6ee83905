"""`make mutants`: each deliberate fault still fits the source that it changes, and the run tells who noticed it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants import __main__ as command
from tests.mutants import sample
from tests.mutants.catalog import MUTANTS, Mutant
from tests.mutants.coverage import Recorded
from tests.mutants.draw import candidates, draw
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


def test_same_seed_draws_the_same_mutants_of_every_kind() -> None:
    drawn = draw(20, seed=3)

    assert [one.name for one in drawn] == [one.name for one in draw(20, seed=3)]
    assert len({one.kind for one in drawn}) == 10
    assert all(one.diff() for one in drawn)
    queue = draw(20, seed=3, only=["layers/core/tidegate/queue/"])
    assert {Path(one.file).parent.name for one in queue} == {"queue"}


def test_drawn_conditions_are_well_formed() -> None:
    """One that DynamoDB refuses as malformed is noticed by any test, and says nothing about the suite."""
    malformed = re.compile(r"\(\s*(?:AND|OR)\b|\b(?:AND|OR)\s*(?:\)|AND\b|OR\b)")

    assert [one.name for one in candidates() if one.kind == "condition" and malformed.search(one.new)] == []


@pytest.mark.parametrize(
    ("killed", "trials", "low", "high"), [(52, 60, 0.758, 0.931), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0)]
)
def test_interval_of_a_share_is_wilsons(killed: int, trials: int, low: float, high: float) -> None:
    assert sample.wilson(killed, trials) == pytest.approx((low, high), abs=0.001)


def test_equivalent_mutants_have_a_reason_and_still_exist() -> None:
    known = {one.name for one in candidates()}

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
