"""`make mutants SAMPLE=60 SEED=7`: random mutants, the share of them that the tests notice, and those they do not.

    python -m tests.mutants.sample 60 --seed 7     # draws, tries and prints; continues where it stopped
    python -m tests.mutants.sample 20 --seed 7 --only layers/core/tidegate/queue
    python -m tests.mutants.sample 20 --seed 7 --only layers/core/tidegate/queue --near    # its own tests: an hour
    python -m tests.mutants.sample record          # which tests run which lines, for all suites: half an hour or more

Mutants are drawn in equal numbers of each kind (draw.py). Each runs against the tests that run its lines, those of the
same capability first, then those that run most of its file, then the shortest ones; the first failure kills it if that
test passes without the bug. First only the tests named after the capabilities of the mutants are recorded and run; the
other suites are recorded when a mutant survives these. A read that is no longer consistent is first held against the
list of reads. A test that takes far longer than it did when it was recorded fails. A line that no test runs is a
survivor; one whose tests were too many or too long is told with how many were left out. equivalent.toml lists those
that change nothing that a caller could notice, each with the reason; they are not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.coverage import PLACE, PROCESSES, SUITES, Recorded, files_of_tests, keep_stopped, record
from tests.mutants.draw import Drawn, draw
from tests.mutants.tree import ROOT, copy_tree
from tests.mutants.trial import Outcome, import_libraries, run_tests

EQUIVALENT = ROOT / "tests" / "mutants" / "equivalent.toml"
# The tests of a mutant that no test has noticed yet: at most so many, and for so many recorded seconds.
_MOST_TESTS, _MOST_SECONDS = 700, 300.0
# They look at the product's source, so no line of it is recorded for them.
_OF_SOURCE = {"consistent": "tests/unit/aws/test_reads.py::test_every_read_is_as_it_was_reviewed"}
# How many tests run at once: to import what the first ones need is less work than to import all.
_FIRST, _FEW = 6, 40
if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    # The numbers of mutants, None at the end; the number, killer, reason and seconds of each one that was tried.
    Tasks = Queue[int | None]
    Done = Queue[tuple[int, str, str, float]]


@dataclass(frozen=True)
class Verdict:
    """`killer` is the test that failed; if there is none, `why` has the reason.

    `near`: only the tests of the mutant's own capability were tried.
    """

    name: str
    killer: str
    why: str
    seconds: float
    near: bool = False


def near_files(mutant: Drawn) -> list[str]:
    """The files of tests that are named after the mutant's capability, or stand in a folder that is."""
    capability = Path(mutant.file).parts[3]

    def is_near(test: str) -> bool:
        words = re.split(r"[/_.]", test)
        return any(word == capability or (len(word) > 3 and capability.startswith(word)) for word in words)

    return [file for file in files_of_tests(SUITES) if is_near(file)]


def order(mutant: Drawn, recorded: Recorded, passed: frozenset[str] = frozenset()) -> tuple[list[str], int]:
    """The tests that run the mutant's lines, the most promising first; and how many exceed the limits.

    `passed`: files of tests that did not notice it.
    """
    extent = mutant.old.count("\n")
    found = recorded.tests(mutant.file, mutant.line, mutant.line + extent)
    found = [test for test in found if test.partition("::")[0] not in passed]
    words = {word for word in (*Path(mutant.file).parts[2:-1], Path(mutant.file).stem) if word != "tidegate"}
    near = recorded.lines(mutant.file)
    most = max((near[test] for test in found), default=1)

    def rank(test: str) -> tuple[bool, int, float, str]:
        related = words & set(test.partition("::")[0].replace(".py", "").replace("test_", "").split("/"))
        return not related, -(4 * near[test] // most), recorded.seconds[test], test

    ordered = sorted(found, key=rank)
    chosen: list[str] = []
    spent = 0.0
    for test in ordered[:_MOST_TESTS]:
        spent += recorded.seconds[test]
        if chosen and spent > _MOST_SECONDS:
            break
        chosen.append(test)
    return chosen, len(found) - len(chosen)


def judge(
    mutant: Drawn, tree: Path, recorded: Recorded, passing: set[str], passed: frozenset[str] = frozenset()
) -> tuple[str, str]:
    """(the test that kills the mutant, why there is none). `passed`: files of tests that did not notice it.

    `passing`: tests that passed in this tree without a bug; it grows."""
    chosen, left_out = order(mutant, recorded, passed)
    of_source = _OF_SOURCE.get(mutant.kind)
    tests = [test for test in (of_source, *chosen) if test and (tree / test.partition("::")[0]).exists()]
    if not tests:
        return "", "no other one runs this line" if passed else "no test runs this line"

    def seconds(test: str) -> float:
        return 60 + 20 * recorded.seconds.get(test, 10.0)

    change = mutant.file, mutant.applied((tree / mutant.file).read_text())
    unreliable: set[str] = set()
    for some in (tests[:_FIRST], tests[_FIRST:_FEW], tests[_FEW:]):
        left = [test for test in some if test not in unreliable]
        while left:
            found = run_tests(left, tree, change, seconds)
            if found.trouble:
                # The product cannot be imported with the bug, or ends the process: noticed, unless it does so without.
                return (left[0], "") if not run_tests(left[:1], tree, None, seconds).trouble else ("", found.trouble)
            if not found.failed:
                break
            if found.failed in passing or run_tests([found.failed], tree, None, seconds) == Outcome():
                passing.add(found.failed)
                return found.failed, ""
            unreliable.add(found.failed)
            left = left[left.index(found.failed) + 1 :] if found.failed in left else []
    return "", f"SURVIVED {len(tests)} tests" + (f", {left_out} were left out" if left_out else "")


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not trials:
        return 0.0, 1.0
    share, squared = successes / trials, z * z
    middle = share + squared / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials))
    return (middle - half) / (1 + squared / trials), (middle + half) / (1 + squared / trials)


def equivalent(path: Path = EQUIVALENT) -> dict[str, str]:
    """The reason of each mutant that changes nothing that matters, by its name."""
    listed = tomllib.loads(path.read_text())["mutant"] if path.exists() else []
    return {one["name"]: one["reason"] for one in listed}


class Verdicts:
    """The verdicts of a seed so far, so that a run can be stopped and continued, and survivors be tried again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_name: dict[str, Verdict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                one = Verdict(**json.loads(line))
                self.by_name[one.name] = one

    def add(self, verdict: Verdict) -> None:
        self.by_name[verdict.name] = verdict
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


def _work(mutants: Sequence[Drawn], passed: Sequence[frozenset[str]], number: int, tasks: Tasks, done: Done) -> None:
    recorded = Recorded()
    with tempfile.TemporaryDirectory(prefix=f"mutants-{number}-") as place:
        tree = copy_tree(Path(place))
        passing: set[str] = set()
        while (at := tasks.get()) is not None:
            began = time.monotonic()
            killer, why = judge(mutants[at], tree, recorded, passing, passed[at])
            done.put((at, killer, why, time.monotonic() - began))


def try_all(mutants: Sequence[Drawn], verdicts: Verdicts, processes: int, near: bool) -> None:
    """Tries the mutants in several processes, each with a copy of the tree.

    `near`: only the tests of its own capability are recorded; otherwise a survivor of these is tried with the others.
    """
    if not mutants:
        return
    import_libraries()
    survived = {name for name, verdict in verdicts.by_name.items() if verdict.near and not verdict.killer}
    passed = [frozenset(near_files(each) if each.name in survived and not near else ()) for each in mutants]
    processes = min(processes, len(mutants))
    tasks: Tasks = multiprocessing.Queue()
    done: Done = multiprocessing.Queue()
    for at in (*range(len(mutants)), *[None] * processes):
        tasks.put(at)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(mutants, passed, n, tasks, done)) for n in range(processes)]
    for worker in workers:
        worker.start()
    try:
        for count in range(len(mutants)):
            at, killer, why, seconds = done.get()
            mutant = mutants[at]
            if passed[at] and not killer:
                why = f"{verdicts.by_name[mutant.name].why} of its own, {why}"
            verdicts.add(Verdict(mutant.name, killer, why, round(seconds, 1), near))
            said = f"{count + 1:>3} {seconds:5.0f} s  {mutant.kind:<12} {mutant.file}:{mutant.line}  {killer or why}"
            print(said, flush=True)
    finally:
        for worker in workers:
            worker.join(10)
            worker.terminate()


def report(mutants: Sequence[Drawn], verdicts: Verdicts, seed: int) -> str:
    reasons = equivalent()
    counted = [one for one in mutants if one.name not in reasons and one.name in verdicts.by_name]
    killed = [one for one in counted if verdicts.by_name[one.name].killer]
    low, high = wilson(len(killed), len(counted))
    lines = []
    for one in counted:
        if one not in killed:
            seen = verdicts.by_name[one.name]
            others = ", the other suites were not tried" if seen.near else ""
            lines += [f"\n{one.file}:{one.line} {one.kind}: {seen.why}{others}", one.diff()]
            lines += [f"  name = {json.dumps(one.name)}"]
    share = 100 * len(killed) / max(1, len(counted))
    left = sum(one.name not in reasons and one.name not in verdicts.by_name for one in mutants)
    lines += [
        f"\nseed {seed}: {len(killed)} of {len(counted)} killed, {share:.0f} % "
        f"(95 % interval {100 * low:.0f} to {100 * high:.0f}); "
        f"{sum(one.name in reasons for one in mutants)} more are equivalent"
        + (f"; {left} are not tried yet" if left else "")
    ]
    return "\n".join(lines)


def try_drawn(mutants: Sequence[Drawn], verdicts: Verdicts, processes: int, near: bool, again: bool) -> None:
    """Tries those that were not tried yet; `again`: also those that survived."""
    os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
    # A run that was stopped while it recorded left what it had.
    keep_stopped()
    mutants = [one for one in mutants if one.name not in equivalent()]
    seen = verdicts.by_name
    left = [one for one in mutants if one.name not in seen or (again and not seen[one.name].killer)]
    # Without tests of its own, a capability is held against the others' at once.
    own = {one.name: near_files(one) for one in left}
    if files := sorted({file for files in own.values() for file in files}):
        record(files, processes=processes)
    try_all([one for one in left if own[one.name]], verdicts, processes, near=True)
    if near:
        return
    left = [one for one in mutants if one.name not in seen or (seen[one.name].near and not seen[one.name].killer)]
    if left:
        record(SUITES, processes=processes)
        try_all(left, verdicts, processes, near=False)


def main(given: list[str]) -> int:
    if given[:1] == ["record"]:
        record(given[1:] or SUITES)
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sample")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="in files whose path begins so; more than once")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--near", action="store_true", help="only tests of the mutants' own capabilities")
    parser.add_argument("--survivors", action="store_true", help="try those again that survived")
    parser.add_argument("--show", action="store_true", help="print what is known and try nothing")
    arguments = parser.parse_args(given)
    mutants = draw(arguments.count, arguments.seed, only=arguments.only)
    verdicts = Verdicts(PLACE / f"seed-{arguments.seed}.jsonl")
    if not arguments.show:
        try_drawn(mutants, verdicts, arguments.processes, arguments.near, arguments.survivors)
    print(report(mutants, verdicts, arguments.seed))
    counted = [one for one in mutants if one.name not in equivalent()]
    killed = sum(bool((seen := verdicts.by_name.get(one.name)) and seen.killer) for one in counted)
    return 0 if killed >= 0.95 * len(counted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
