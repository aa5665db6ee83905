"""Sheet names that Excel accepts: unique, at most 31 UTF-16 units, without some characters."""

from __future__ import annotations

import re

from tidegate.exports.rendering.xlsx.xml_text import clean

_FORBIDDEN = re.compile(r"[\[\]:*?/\\\n\r\t]")
_LONGEST = 31


class SheetNames:
    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._count = 0

    def take(self, title: str) -> str:
        self._count += 1
        base = _cut(_FORBIDDEN.sub(" ", clean(title)).strip(" '"), _LONGEST).strip(" '") or f"Sheet{self._count}"
        name, again = base, 2
        while name.casefold() in self._taken or name.casefold() == "history":
            suffix = f" {again}"
            name, again = _cut(base, _LONGEST - len(suffix)) + suffix, again + 1
        self._taken.add(name.casefold())
        return name


def _cut(text: str, units: int) -> str:
    """Cuts text to a number of UTF-16 units; most emoji count as two."""
    return text.encode("utf-16-le")[: units * 2].decode("utf-16-le", "ignore")
