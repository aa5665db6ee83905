"""A page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    items: list[T]
    next_cursor: str | None
