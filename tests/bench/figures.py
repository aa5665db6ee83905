"""Figures with their bars, and the table that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

# Set by the test that runs every section: its figures say nothing, it only sees that a section works.
smallest = False


def few(number: int, least: int = 1) -> int:
    """The number itself; in the smallest size, a hundredth of it."""
    return max(least, number // 100) if smallest else number


@dataclass(frozen=True)
class Figure:
    """One measured value. `bar` is its upper limit, or its lower limit with `at_least`."""

    section: str
    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def _number(value: float) -> str:
    if value == 0 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _bar(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    return f"{'≥' if figure.at_least else '≤'} {_number(figure.bar)} {'✓' if figure.holds else '✗'}"


def table(figures: Iterable[Figure]) -> str:
    """Returns a table in Markdown, which can be pasted into the README."""
    lines = ["| | measured | bar | |", "| --- | ---: | ---: | --- |"]
    section = ""
    for figure in figures:
        if figure.section != section:
            section = figure.section
            lines.append(f"| **{section}** | | | |")
        measured = f"{_number(figure.value)} {figure.unit}".strip()
        lines.append(f"| {figure.name} | {measured} | {_bar(figure)} | {figure.note} |")
    return "\n".join(lines)


def save(figures: Iterable[Figure], path: Path, about: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"about": about, "figures": [asdict(figure) | {"holds": figure.holds} for figure in figures]}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False))
