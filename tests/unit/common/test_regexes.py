"""No pattern takes more than linear time, whatever a user sends."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.sheets import values as formula_guard
from tidegate.sheets.fill_template import ATTRIBUTES

codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
# Characters of the classes \s, \d and \w, and one that no pattern expects.
CLASSES, NEVER = (" ", "1", "a"), "\x01"
# The small sizes find exponential time, the last one quadratic time; a linear pattern takes microseconds.
SIZES = (*range(8, 41, 4), 12_000)
MOST_SECONDS = 0.25
# Patterns for texts that the product or its libraries wrote.
# Patterns for valid XML, whose elements all end: unit/exports/fill/test_hostile tries them on the worst of it.
OF_VALID_XML = ("fill_template._SECTION", "fill_template._ATTRIBUTE")
OWN_TEXTS = ("sheets.xlsx_frame.", "web.reference.", "web.console.bundle.", "web.openapi.", "http.client._PREFIX")


# How a pattern is used: compared with a text from its start, searched for once, or found again and again.
COMPARED, SEARCHED, FOUND = range(3)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], int]]:
    """Every pattern of the product, and how it is used."""
    yield "formula_guard._inner", formula_guard._inner(formula_guard.SEPARATORS), SEARCHED
    for info in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
        module = importlib.import_module(info.name)
        source = Path(str(module.__file__)).read_text()
        for name, value in vars(module).items():
            calls = re.findall(rf"\b{name}(?:\[\w+\])?\.(search|finditer|sub|split|findall)\b", source)
            used = FOUND if set(calls) - {"search"} else SEARCHED if calls else COMPARED
            for entry in value.values() if isinstance(value, dict) else [value]:
                if not isinstance(entry, re.Pattern) or any(own in f"{info.name}.{name}" for own in OWN_TEXTS):
                    continue
                if f"{info.name}.{name}".endswith(OF_VALID_XML) or ATTRIBUTES in str(entry.pattern):
                    continue
                yield f"{info.name}.{name}", entry, used


def literals(tree: Any) -> Iterator[str]:
    """The runs of literal characters in a parsed pattern."""
    run = ""
    for code, argument in tree:
        if code is codes.LITERAL:
            run += chr(argument)
            continue
        if run:
            yield run
            run = ""
        if code is codes.IN:
            yield from (chr(value) for kind, value in argument if kind is codes.LITERAL)
            yield from (chr(value[0]) for kind, value in argument if kind is codes.RANGE)
        for part in argument if isinstance(argument, list | tuple) else [argument]:
            for inner in part if isinstance(part, list) else [part]:
                if isinstance(inner, parser.SubPattern):
                    yield from literals(inner)
    if run:
        yield run


def texts(pattern: re.Pattern[Any], size: int) -> Iterator[Any]:
    parsed = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else 0)
    runs = list(dict.fromkeys(literals(parsed)))[:12]
    units = [*runs, *CLASSES, *("".join(pair) for pair in itertools.product(runs, repeat=2))]
    for prefix, unit in itertools.product(["", *runs], units):
        text = prefix + unit * size + NEVER
        yield text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text


def slowest(pattern: re.Pattern[Any], used: int) -> tuple[float, Any]:
    worst: tuple[float, Any] = (0.0, "")
    for size in SIZES:
        for text in texts(pattern, size):
            began = time.process_time()
            pattern.fullmatch(text)
            if used == SEARCHED:
                pattern.search(text)
            elif used == FOUND:
                # A tokenizer finds something at each place: all of them together must be linear.
                deque(pattern.finditer(text), maxlen=0)
            worst = max(worst, (time.process_time() - began, text[:60]))
            if worst[0] > MOST_SECONDS:
                return worst
    return worst


@pytest.mark.parametrize(("name", "pattern", "used"), patterns())
def test_no_text_takes_a_pattern_long(name: str, pattern: re.Pattern[Any], used: int) -> None:
    seconds, text = slowest(pattern, used)
    assert seconds <= MOST_SECONDS, f"{name} takes {seconds:.2f} s for {text!r}…"
