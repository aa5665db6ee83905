"""Packs many rows into one binary attribute: DynamoDB bills writes by size, and shards are written often."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any


def pack(rows: Iterable[Iterable[Any]]) -> bytes:
    text = json.dumps([list(row) for row in rows], separators=(",", ":"), ensure_ascii=False)
    return zlib.compress(text.encode(), 1)


def unpack(packed: bytes) -> list[list[Any]]:
    rows: list[list[Any]] = json.loads(zlib.decompress(packed))
    return rows
