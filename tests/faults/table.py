"""The results of the sweep, one line per point, so that a long sweep can be stopped and continued."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """One point of a scenario in one mode. `fault` is empty if there was none."""

    scenario: str
    mode: str
    at: int
    of: int
    fault: str = ""
    seconds: float = 0.0
    commit: str = ""


@dataclass
class Table:
    """The latest row of each point counts."""

    path: Path
    rows: dict[tuple[str, str, int], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                self._take(Row(**json.loads(line)))

    def _take(self, row: Row) -> None:
        self.rows[(row.scenario, row.mode, row.at)] = row

    def has(self, scenario: str, mode: str, at: int) -> bool:
        return (scenario, mode, at) in self.rows

    def add(self, row: Row) -> None:
        """Appends one short line, because several processes may write to the file."""
        self._take(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def faults(self) -> list[Row]:
        return [row for row in self.rows.values() if row.fault]

    def shown(self, scenarios: Iterable[str], modes: Iterable[str]) -> str:
        """Points without fault / points run, by scenario and mode. `(of …)`: some are left; a dash: it has none."""
        modes = list(modes)
        lines = [["scenario", *modes], ["---", *("---:" for _ in modes)]]
        lines += [[scenario, *(self._cell(scenario, mode) for mode in modes)] for scenario in scenarios]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _cell(self, scenario: str, mode: str) -> str:
        played = [row for row in self.rows.values() if (row.scenario, row.mode) == (scenario, mode)]
        points = [row for row in played if row.of]
        if not played:
            return ""
        if not points:
            return "–"
        survived, of = sum(not row.fault for row in points), max(row.of for row in points)
        left = f" (of {of})" if len(points) < of else ""
        return f"{survived}/{len(points)}{left}"


def commit() -> str:
    """The commit of this tree, with a + if files differ from it."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip()
