"""Deliberate bugs in the product, each a small change of its source, and the tests that must fail then."""

from __future__ import annotations

from tests.mutants.catalog import distribution, kinds, others, queue
from tests.mutants.catalog.model import Mutant

MUTANTS: tuple[Mutant, ...] = (*distribution.MUTANTS, *queue.MUTANTS, *others.MUTANTS, *kinds.MUTANTS)

__all__ = ["MUTANTS", "Mutant"]
