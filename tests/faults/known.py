"""Faults that the sweep finds and that are not mended yet: the list is to be empty."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """`error` is a regular expression for what the sweep says; `reason` is what is wrong and where it is mended."""

    mode: str
    scenarios: tuple[str, ...]
    error: str
    reason: str


KNOWN: tuple[Known, ...] = ()
