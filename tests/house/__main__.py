"""`make house` and `make walk`: how large the product is for a reader, against the bars of CONTRIBUTING.md."""

from __future__ import annotations

import sys

from tests.house import figures

MOST_FILES = 45
# Lines grow with what the product does, so they are held against that. Before the fold: 53,838 lines without
# docstrings, 136 routes, 396 for each.
MOST_LINES_A_ROUTE = 421
_PAIRS_LISTED = 40
MOST_CHANGES = {"download": 650, "export": 650, "ingest": 650, "batch": 750}


def _say(name: str, value: int, most: int | None = None) -> bool:
    held = most is None or value <= most
    print(f"  {'✓' if held else '✗'} {name:<60} {value:>7,}" + (f"   (at most {most:,})" if most is not None else ""))
    return held


def _short(file: str) -> str:
    return file.removeprefix(f"{figures.ROOT}/").removeprefix("layers/core/tidegate/")


def house() -> bool:
    found = figures.modules()
    lines, code = sum(each.lines for each in found), sum(each.code_lines for each in found)
    one_importer = figures.with_one_importer(found)
    disguised, doubled = figures.functions_in_disguise(found), figures.names_with_two_meanings(found)
    cycles, long_names = figures.cycles_between_packages(found), figures.long_test_names()
    held = [
        _say("product: modules", len(found), 230),
        _say("product: lines", lines),
        _say("product: lines without docstrings", code),
        _say("product: of these, for each route of the API", code // figures.routes(found), MOST_LINES_A_ROUTE),
        _say("core: Python files", sum(each.is_core for each in found), 150),
        _say("core: modules with one importer besides the wiring", len(one_importer)),
        _say("classes with one public method and an assigning constructor", len(disguised), 20),
        _say("core: class names with two meanings", len(doubled), 0),
        _say("client: packages that import each other", len(cycles), 0),
        _say("tests: names of more than twelve words", len(long_names), 0),
    ]
    if "-v" in sys.argv:
        for title, names in (
            ("one importer", [each.name for each in one_importer]),
            ("one public method", disguised),
            ("two meanings", doubled),
            ("cycles", cycles),
            ("long names", long_names),
        ):
            print(f"\n{title}:", *names, sep="\n  ")
    return all(held)


def walk() -> bool:
    from tests.house.walk import JOURNEYS
    from tests.house.walk import walk as follow

    held = []
    print(f"  {'':<12}{'files':>8}{'changes':>10}{'AWS calls':>12}")
    for name in JOURNEYS:
        followed = follow(name)
        files, changes = len(followed.files), followed.changes
        fits = files <= MOST_FILES and changes <= MOST_CHANGES[name]
        held.append(fits)
        print(f"  {'✓' if fits else '✗'} {name:<10}{files:>8}{changes:>10}{followed.aws_calls:>12}", end="")
        print(f"   (at most {MOST_FILES} and {MOST_CHANGES[name]})")
        if "-v" in sys.argv:
            for file, times in followed.files.most_common():
                print(f"      {times:>6}  {_short(file)}")
            print("    changes between two files:")
            for (one, other), times in followed.pairs.most_common(_PAIRS_LISTED):
                print(f"      {times:>6}  {_short(one)} · {_short(other)}")
    return all(held)


if __name__ == "__main__":
    sys.exit(0 if {"house": house, "walk": walk}[sys.argv[1]]() else 1)
