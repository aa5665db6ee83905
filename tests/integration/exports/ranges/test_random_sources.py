"""Random sources, honest and not: in ranges, from staged pages and at once, an export is the same file."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import zipfile
from typing import Any

import pytest

from tests.integration.exports.test_fill import template
from tests.support.exports.fill import sheet_of
from tests.support.exports.paged_source import PagedSource
from tests.support.exports.ranges import staged_only
from tests.support.exports.running import ExportWorld
from tidegate.exports import pull as paging

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))
CELLS = {"A1": "{who} {sign}", "A3": "{.id}", "B3": "{.name}", "C3": "=A3*2", "D3": "{.amount} x", "A5": "=SUM(A3:A3)"}
STYLED = [{"name": "id"}, {"name": "name", "style": {"merge": True}}, {"name": "amount", "style": {"total": True}}]
NAMES = ["甲", "=1+1", "a,b", "x\n", None, "same", "same"]


def random_source(rng: random.Random, source: PagedSource) -> None:
    """Gives the source rows and a way to answer: a page size of its own, a wrong total, a short page, late keys."""
    count = rng.choice([0, 1, 99, 100, 101, 350, 900, 1601, 2050])
    amount: Any = rng.choice(
        [lambda n: n / 4, lambda n: f"{n / 4:.2f}", lambda n: rng.choice([n, str(n), None, 10**17])]
    )
    rows = [{"id": number, "name": rng.choice(NAMES), "amount": amount(number)} for number in range(count)]
    if rows and rng.random() < 0.3:
        rng.choice(rows)["late"] = "L"
    size = rng.choice([100, 100, 100, 40, 60])
    short = rng.choice([None, None, None, rng.randrange(1, 40)])
    totals: dict[str, Any] = {"exact": count, "text": str(count), "unknown": -1, "more": count + 130}
    totals |= {"less": max(0, count - 130), "zero": 0}
    kind = rng.choice(["exact", "exact", *totals, "first", "next", "force_continue"])
    header, footer = rng.choice([None, None, 0, 3]), rng.choice([None, "last", "all"])

    def answer(_: PagedSource, page: int, __: int) -> Any:
        found, last = rows[page * size : (page + 1) * size], (page + 1) * size >= count
        data: dict[str, Any] = {"data": found[:-1] if page == short else found}
        if kind in totals or (kind == "first" and page == 0):
            data["total"] = totals.get(kind, count)
        elif kind != "first":
            data[kind] = (None if last else f"p{page + 1}") if kind == "next" else int(not last)
        if footer == "all" or (footer == "last" and last):
            data["footer"] = {"sign": "ok 1.00"}
        if header is not None and page >= header:
            data["header"] = {"who": "H"}
        return {"status": 200, "data": data}

    source.answer = answer


def random_order(rng: random.Random, world: ExportWorld) -> dict[str, Any]:
    kind = rng.choice(["csv", "gzip", "jsonl", "excel", "excel", "fill", "fill"])
    order: dict[str, Any] = {"type": "excel" if kind == "fill" else "csv" if kind == "gzip" else kind}
    order |= {"step": 100, "parallel": rng.choice([1, 4, 12, 28]), "source_url": world.source.url}
    if kind == "gzip":
        order["compression"] = "gzip"
    elif kind == "excel":
        order |= rng.choice([{}, {"template": STYLED, "title": "T"}, {"template": {"amount": "A", "nope": "N"}}])
    elif kind == "fill":
        order["fill"] = {"file_id": template(world, sheet_of(CELLS)), "values": {"who": "ACME"}}
    return order


def contents(data: bytes) -> Any:
    if data[:2] != b"PK":
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    archive = zipfile.ZipFile(io.BytesIO(data))
    return {name: archive.read(name) for name in archive.namelist()}


def without_pages(warnings: list[str] | None) -> list[str]:
    """Leaves out the number of pages: one way may request a page more than another, to see that none follows."""
    return [re.sub(r"its \d+ pages", "its pages", line) for line in warnings or ()]


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_three_ways_make_one_file(world: ExportWorld, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    random_source(rng, world.source)
    order = random_order(rng, world)
    monkeypatch.setattr(paging, "MIN_PAGES", rng.choice([2, 4]))

    joined, data = world.export(**order)
    with staged_only(world):
        staged, staged_data = world.export(**order)
    answer = world.post("/v1/download/sync", **order)

    assert contents(data) == contents(staged_data) == contents(answer.body)
    assert joined["progress"] == staged["progress"]
    warnings = [joined.get("warnings"), staged.get("warnings"), json.loads(answer.headers.get("x-warnings", "[]"))]
    assert without_pages(warnings[0]) == without_pages(warnings[1]) == without_pages(warnings[2])
