"""`make mutants`: puts one deliberate bug (mutant) at a time into a copy of this tree; one of its tests must fail.

    python -m tests.mutants                # all that are not killed yet; continues where it stopped
    python -m tests.mutants lease batch    # those with one of these words in their name
    python -m tests.mutants --again        # also those that were killed before
    python -m tests.mutants --show         # the table so far
    make mutants SAMPLE=60 SEED=7          # random ones instead: tests/mutants/sample.py

The test that killed a mutant the last time runs first. A test counts only if it passes without the bug. It is an error
if the file or text that a mutant changes does not exist any more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalog import MUTANTS, Mutant
from tests.mutants.table import Row, Table, state_of
from tests.mutants.tree import DoesNotApply, changed, copy_tree, missing_tests
from tests.mutants.trial import Outcome, import_libraries, run_tests

SURVIVED = "SURVIVED"


def try_mutant(mutant: Mutant, tree: Path, killer: str = "") -> tuple[str, str]:
    """(the test that kills the mutant, why there is none). `killer` is the test that killed it the last time."""
    if missing := missing_tests(mutant, tree):
        return "", f"{', '.join(missing)} does not exist: correct it in tests/mutants/catalog"
    found = Outcome()
    try:
        change = mutant.file, changed(mutant, tree)
    except DoesNotApply as error:
        return "", f"DOES NOT APPLY: {error}"
    if killer and (tree / killer.partition("::")[0]).exists():
        found = run_tests([killer], tree, change)
    if not found.failed:
        found = run_tests(mutant.tests, tree, change)
    if found.trouble:
        return "", found.trouble
    if not found.failed:
        return "", SURVIVED
    without = run_tests([found.failed], tree)
    if without != Outcome():
        return "", f"{found.failed} fails without the fault too"
    return found.failed, ""


def try_all(mutants: Sequence[Mutant], table: Table) -> None:
    import_libraries()
    with tempfile.TemporaryDirectory(prefix="mutants") as place:
        tree = copy_tree(Path(place))
        for mutant in mutants:
            began = time.monotonic()
            killer, why = try_mutant(mutant, tree, table.last_killer(mutant))
            table.add(Row(mutant.name, state_of(mutant), killer, why, round(time.monotonic() - began, 1)))
            print(f"{mutant.name:<60} {killer or why}", flush=True)


def shown(mutants: Sequence[Mutant], table: Table) -> str:
    lines = ["| mutant | killed by |", "| --- | --- |"]
    for mutant in mutants:
        row = table.rows.get(mutant.name)
        if row is None:
            lines.append(f"| {mutant.name} | not tried yet |")
        else:
            lines.append(f"| {mutant.name} | {row.killer or '**' + row.why + '**'} |")
    killed = sum(table.killed(mutant) for mutant in mutants)
    return "\n".join([*lines, "", f"{killed} of {len(mutants)} killed"])


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*", help="only mutants with one of these words in their name")
    parser.add_argument("--table", type=Path, default=Path(".local/mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="try also those that were killed before")
    parser.add_argument("--show", action="store_true", help="print the table and try nothing")
    arguments = parser.parse_args(given)
    mutants = [one for one in MUTANTS if not arguments.words or any(word in one.name for word in arguments.words)]
    table = Table(arguments.table)
    if not arguments.show:
        try_all([one for one in mutants if arguments.again or not table.killed(one)], table)
    print(shown(mutants, table))
    return 0 if all(table.killed(mutant) for mutant in mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
