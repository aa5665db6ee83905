"""Figures with their bars, and the table that shows them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
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
        if self.bar is None or math.isnan(self.value):
            return True
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def skipped(section: str, what: str, why: str) -> Figure:
    """Says by name what was not measured here."""
    return Figure(section, f"{what}: not measured", math.nan, note=why)


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if value == 0 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _bar(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    return f"{'≥' if figure.at_least else '≤'} {_number(figure.bar)} {'✓' if figure.holds else '✗'}"


def table(figures: Iterable[Figure]) -> str:
    """Returns a table in Markdown, as it stands on the page."""
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
    measured = [figure for figure in figures if not math.isnan(figure.value)]
    data = {"about": about, "figures": [asdict(figure) | {"holds": figure.holds} for figure in measured]}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False))


# --- the page with the tables of the last runs
# A section's table stands between two comments, and is replaced as a whole by the next run of that section.


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n.*?<!-- end of {name} -->\n", re.DOTALL)


def write_page(path: Path, name: str, how: str, figures: Iterable[Figure], order: Sequence[str]) -> None:
    """Replaces the table of a section, or adds it in its place in `order`. `how`: when and under which load it ran."""
    text = path.read_text("utf-8")
    made = f"<!-- {name} -->\n### {name}\n\n{how}\n\n{table(figures)}\n<!-- end of {name} -->\n"
    if found := _block(name).search(text):
        text = text[: found.start()] + made + text[found.end() :]
    else:
        later = [_block(other).search(text) for other in order[order.index(name) + 1 :]]
        at = min((found.start() for found in later if found), default=len(text))
        before, after = text[:at].rstrip("\n"), text[at:]
        text = f"{before}\n\n{made}" + (f"\n{after}" if after else "")
    path.write_text(text, "utf-8")


def page_rows(path: Path) -> dict[str, dict[str, str]]:
    """What the page says: for each section, the measured values by the names of their rows."""
    text, rows = path.read_text("utf-8"), dict[str, dict[str, str]]()
    for name in re.findall(r"^<!-- end of (\w+) -->$", text, re.MULTILINE):
        found = _block(name).search(text)
        lines = re.findall(r"^\| (.+?) \| ([^|]+) \|[^|]*\|.*\|$", found[0], re.MULTILINE) if found else []
        rows[name] = {row: value.strip() for row, value in lines if value.strip(" -:")}
    return rows
