"""Workbooks hold before the Open XML SDK, Microsoft's own validator of Office documents, which npm has for Node."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msoffcrypto
import pytest

from tests.support.exports.fill import dashboard, filled, sheet_of
from tests.support.exports.samples import SEED_TABLE, mixed_rows, seed_rows, with_nulls
from tests.unit.exports.fill.test_filled import INVOICE, ORDERS, designed, designed_by_xlsxwriter
from tidegate.sheets.files import Output, render
from tidegate.sheets.table import SheetTable, keys_of, parse_template
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

VALIDATOR, VERSION = "@ooxml-tools/validate", "0.4.6"
PLACE = Path(__file__).resolve().parents[2] / ".local" / "open-xml-sdk"
VALIDATE = """
import { readFileSync } from "node:fs";
import validate from "@ooxml-tools/validate";
const found = {};
for (const path of process.argv.slice(2)) {
    const errors = await validate(new Uint8Array(readFileSync(path)), "xlsx", "Microsoft365");
    found[path] = errors.map((error) => `${error.path.partUri} ${error.path.xpath}: ${error.description}`);
}
console.log(JSON.stringify(found));
process.exit(0);
"""

Validate = Callable[[Mapping[str, bytes]], dict[str, list[str]]]


@pytest.fixture(scope="module")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """What is wrong with each of these workbooks."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("needs Node and npm")
    PLACE.mkdir(parents=True, exist_ok=True)
    described = PLACE / "node_modules" / VALIDATOR / "package.json"
    if not described.exists() or json.loads(described.read_text())["version"] != VERSION:
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        command += ["--fetch-retries=1", "--fetch-timeout=60000", f"{VALIDATOR}@{VERSION}"]
        done = subprocess.run(command, cwd=PLACE, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{VALIDATOR} cannot be installed here: {done.stderr[-300:]}")
    (PLACE / "run.mjs").write_text(VALIDATE)
    folder = tmp_path_factory.mktemp("books")

    def errors(books: Mapping[str, bytes]) -> dict[str, list[str]]:
        paths = {name: folder / f"{number}.xlsx" for number, name in enumerate(books)}
        for name, path in paths.items():
            path.write_bytes(books[name])
        run = ["node", str(PLACE / "run.mjs"), *map(str, paths.values())]
        answer = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout.splitlines()[-1])
        return {name: found[str(path)] for name, path in paths.items()}

    return errors


STYLED = [
    {"title": "Who", "children": [{"name": "customer", "style": {"merge": True, "bold": True}}, {"name": "phone"}]},
    {"name": "amount", "style": {"type": "currency", "total": True, "color": "red", "bg_color": "EEE"}},
    {"name": "rate", "style": {"type": "percent", "align": "center", "width": 90}},
    {"name": "paid_at", "style": {"type": "datetime"}},
    {"name": "note", "style": {"wrap": True, "map": {"-": "none"}, "map_default": "< & >"}},
    {"name": "url", "style": {"type": "link", "label_key": "order_no"}},
    {"name": "ok", "style": {"type": "boolean"}},
    {"name": "code", "style": {"type": "string", "mask": "card"}},
    {"name": "big", "style": {"format": '#,##0.00" CNY";[Red]-0', "total": True}},
]


def rows_of(count: int) -> list[dict[str, Any]]:
    more = {"ok": True, "code": "6222021234567890123", "big": "12345678901234567.89"}
    return [
        {**row, **more, "customer": f"c{number // 7}", "url": f"https://a.example/?a=1&b={number}"}
        for number, row in enumerate(with_nulls(mixed_rows(count)))
    ]


def book(*tables: tuple[SheetTable, list[dict[str, Any]]], **more: Any) -> bytes:
    return b"".join(xlsx_chunks([TableRows(table, keys_of(rows), rows) for table, rows in tables], **more))


def texts(**more: Any) -> SheetTable:
    template = parse_template(STYLED)
    return SheetTable(template, title="订单 & <more>", summary="a<br>b", header={"a": "b"}, footer="end", **more)


def encrypted() -> bytes:
    """What is inside of an encrypted workbook."""
    rows = rows_of(50)
    output = Output("excel", password="correct horse")
    data = b"".join(render(output, [TableRows(texts(), keys_of(rows), rows, 50)], 50))
    file, out = msoffcrypto.OfficeFile(io.BytesIO(data)), io.BytesIO()
    file.load_key(password="correct horse")
    file.decrypt(out)
    return out.getvalue()


TEMPLATES = {
    "openpyxl": sheet_of(INVOICE, designed),
    "xlsxwriter": designed_by_xlsxwriter(),
    "xlsxwriter, a dashboard": dashboard(),
}


def books() -> Iterator[tuple[str, bytes]]:
    plain = list(mixed_rows(300))
    yield "plain", book((SheetTable(), plain))
    yield "no rows", book((SheetTable(parse_template(STYLED)), []))
    yield "nothing", book((SheetTable(), []))
    yield "styles, totals, merged cells, links", book((texts(), rows_of(300)))
    yield "narrow", book((texts(default_width=20, default_height=30, freeze=False, autofilter=False), rows_of(20)))
    yield "row heads", book((SEED_TABLE, seed_rows()))
    yield "below each other", book((texts(), rows_of(20)), (SEED_TABLE, seed_rows()), (SheetTable(), plain))
    yield "a sheet each", book((texts(sheet_name="A 1"), rows_of(20)), (SEED_TABLE, seed_rows()), multi_type="tab")
    yield "several sheets", book((texts(), rows_of(300)), sheet_rows=130)
    yield "hostile texts", book((SheetTable(title="[a]:*?/\\'"), [{"a": '\x00"\x0b&<>\ud800_x0041_', "=b": " x\n"}]))
    yield "encrypted", encrypted()
    for name, template in TEMPLATES.items():
        for count in (0, 1, 40):
            yield f"filled, template of {name}, {count} rows", filled(template, (ORDERS * 20)[:count])
    yield "filled, template of openpyxl, merged", filled(sheet_of(INVOICE, merged), ORDERS * 20)


def merged(sheet: Any) -> None:
    """Two rows a repetition, merged cells in and below them."""
    sheet["B5"], sheet["C5"] = "{.name} of {customer}", "=C4*2"
    sheet["C8"] = "=SUM(C4:C5)"
    for area in ("A4:A5", "A7:C7"):
        sheet.merge_cells(area)


def known(name: str, error: str) -> bool:
    """openpyxl writes the fonts of a template in an order that the SDK does not like; a filled template keeps it."""
    return name.startswith("filled") and "xlsxwriter" not in name and "/x:styleSheet[1]/x:fonts[1]/" in error


def test_workbooks_are_valid(validate: Validate) -> None:
    found = validate(dict(books()))
    wrong = {name: [error for error in errors if not known(name, error)] for name, errors in found.items()}
    assert {name: errors for name, errors in wrong.items() if errors} == {}
    assert len(wrong) >= 18


@pytest.mark.parametrize(
    ("part", "old", "new", "said"),
    [
        ("xl/worksheets/sheet1.xml", b'<row r="2"', b'<row r="2" colour="7"', "'colour' attribute is not declared"),
        ("xl/worksheets/sheet1.xml", b' s="2"', b' s="999"', "The index is '999'"),
        ("xl/worksheets/sheet1.xml", b"<sheetData>", b"<mergeCells/><sheetData>", "unexpected child element"),
        ("xl/workbook.xml", b"<sheets>", b'<sheets><sheet name="x"/>', "required attribute 'sheetId' is missing"),
    ],
)
def test_validator_names_what_is_wrong(validate: Validate, part: str, old: bytes, new: bytes, said: str) -> None:
    good = zipfile.ZipFile(io.BytesIO(book((SheetTable(), list(mixed_rows(3))))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in good.namelist():
            content = good.read(name)
            assert name != part or old in content
            archive.writestr(name, content.replace(old, new, 1) if name == part else content)
    assert said in "".join(validate({"bad": out.getvalue()})["bad"])
