"""The result of each mutant so far, so that a run can be stopped and continued."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.mutants.catalog import Mutant
from tests.mutants.tree import ROOT


@dataclass(frozen=True)
class Row:
    """One trial. `killer` is the test that failed; if there is none, `why` has the reason."""

    name: str
    of: str
    killer: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass
class Table:
    """The latest row of each mutant counts."""

    path: Path
    rows: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                row = Row(**json.loads(line))
                self.rows[row.name] = row

    def add(self, row: Row) -> None:
        self.rows[row.name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def killed(self, mutant: Mutant) -> bool:
        """Whether it was killed, and neither the mutant nor its file nor its tests have changed since."""
        row = self.rows.get(mutant.name)
        return row is not None and bool(row.killer) and row.of == state_of(mutant)

    def last_killer(self, mutant: Mutant) -> str:
        row = self.rows.get(mutant.name)
        return row.killer if row else ""


def state_of(mutant: Mutant) -> str:
    """A hash of the mutant, the file that it changes and the tests that must fail."""
    made = hashlib.sha256(repr(mutant).encode())
    for path in [ROOT / mutant.file, *_test_files(mutant)]:
        made.update(path.read_bytes() if path.is_file() else b"")
    return made.hexdigest()[:16]


def _test_files(mutant: Mutant) -> Iterator[Path]:
    for test in mutant.tests:
        path = ROOT / test
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
