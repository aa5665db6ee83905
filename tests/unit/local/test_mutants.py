"""`make mutants`: each deliberate fault still fits the source that it changes."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import changed
from tests.mutants.catalog import MUTANTS, Mutant
from tests.support.template import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_and_its_tests_exist(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()

    made = changed(mutant, source)

    assert made is not None, f"{mutant.file} does not say once what is to be changed, or would not compile"
    assert made != source
    assert [test for test in mutant.tests if not (ROOT / test).exists()] == []


def test_names_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
