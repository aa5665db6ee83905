"""Files with a password, opened by other implementations: pyzipper, 7-Zip, msoffcrypto's reader, LibreOffice."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msoffcrypto
import openpyxl
import pyarrow.parquet
import pytest
import pyzipper

from tests.support.exports.samples import mixed_rows
from tidegate.errors import BadTable
from tidegate.sheets import files
from tidegate.sheets.files import Output, extension, render
from tidegate.sheets.table import SheetTable, keys_of
from tidegate.sheets.xlsx import TableRows

PASSWORD = "correct horse 7!"
ROWS = list(mixed_rows(3000))
SEVEN_ZIP = shutil.which("7zz") or shutil.which("7z")


def made(tables: int = 1, **fields: Any) -> tuple[str, bytes]:
    output = Output(password=PASSWORD, **fields)
    sources = [TableRows(SheetTable(title=f"t{n}"), keys_of(ROWS), ROWS, len(ROWS)) for n in range(tables)]
    total = tables * len(ROWS)
    return extension(output, sources, total), b"".join(render(output, sources, total))


def plain(tables: int = 1, **fields: Any) -> bytes:
    sources = [TableRows(SheetTable(title=f"t{n}"), keys_of(ROWS), ROWS, len(ROWS)) for n in range(tables)]
    return b"".join(render(Output(**fields), sources, tables * len(ROWS)))


def unzipped(data: bytes, password: str = PASSWORD) -> dict[str, bytes]:
    archive = pyzipper.AESZipFile(io.BytesIO(data))
    archive.setpassword(password.encode())
    assert all(info.flag_bits & 1 for info in archive.infolist())
    return {name: archive.read(name) for name in archive.namelist()}


FORMATS: list[dict[str, Any]] = [
    {"type": "csv"},
    {"type": "jsonl"},
    {"type": "csv", "compression": "gzip"},
    {"type": "parquet"},
]


@pytest.mark.parametrize("fields", FORMATS, ids=lambda each: "-".join(each.values()))
def test_text_and_parquet_become_an_encrypted_zip(fields: dict[str, Any]) -> None:
    ending, data = made(**fields)
    assert ending == "zip"
    inner = "export." + {"csv": "csv", "jsonl": "jsonl", "parquet": "parquet"}[fields["type"]]
    assert unzipped(data) == {inner + (".gz" if "compression" in fields else ""): plain(**fields)}
    assert b"SO2026" not in data
    with pytest.raises(RuntimeError):
        unzipped(data, "another one")


def test_every_file_of_a_zip_is_encrypted() -> None:
    for fields in ({"type": "csv", "multi_type": "tab"}, {"type": "excel", "rows_per_file": 1000}):
        ending, data = made(2 if "multi_type" in fields else 1, **fields)
        found = unzipped(data)
        assert ending == "zip"
        assert len(found) == (2 if "multi_type" in fields else 3)
        if fields["type"] == "excel":
            books = [openpyxl.load_workbook(io.BytesIO(found[f"{n}.xlsx"])) for n in (1, 2, 3)]
            assert [book.worksheets[0].max_row for book in books] == [1002, 1002, 1002]


@pytest.mark.skipif(not SEVEN_ZIP, reason="7-Zip is not installed")
@pytest.mark.parametrize("fields", FORMATS, ids=lambda each: "-".join(each.values()))
def test_7_zip_opens_the_archive_with_the_password_only(fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(made(**fields)[1])
    command = [str(SEVEN_ZIP), "x", "-y", f"-o{tmp_path}"]
    right = subprocess.run([*command, f"-p{PASSWORD}", str(tmp_path / "a.zip")], capture_output=True, check=False)
    assert right.returncode == 0, right.stdout
    (out,) = [path for path in tmp_path.iterdir() if path.name != "a.zip"]
    assert out.read_bytes() == plain(**fields)
    wrong = subprocess.run([*command, "-pwrong", str(tmp_path / "a.zip")], capture_output=True, check=False)
    assert wrong.returncode != 0


def test_workbook_is_encrypted_as_excel_does_it() -> None:
    ending, data = made(type="excel")
    assert ending == "xlsx"
    assert data[:8] == bytes.fromhex("d0cf11e0a1b11ae1")
    book = msoffcrypto.OfficeFile(io.BytesIO(data))
    assert book.is_encrypted()
    book.load_key(password=PASSWORD, verify_password=True)
    out = io.BytesIO()
    book.decrypt(out, verify_integrity=True)
    assert out.getvalue() == plain(type="excel")


# LibreOffice's own reader of encrypted workbooks, driven by its own Python.
OPEN = """
import sys, uno
from com.sun.star.beans import PropertyValue
import time
local = uno.getComponentContext()
resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
for _ in range(240):
    try:
        context = resolver.resolve("uno:pipe,name=" + sys.argv[1] + ";urp;StarOffice.ComponentContext")
        break
    except Exception:
        time.sleep(0.25)
desktop = context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)
options = [PropertyValue(Name=name, Value=value) for name, value in (("Hidden", True), ("Password", sys.argv[3]))]
book = desktop.loadComponentFromURL("file://" + sys.argv[2], "_blank", 0, tuple(options))
print(book.Sheets.getByIndex(0).getCellByPosition(1, 3001).String if book else "refused")
if book:
    book.close(True)
desktop.terminate()
"""


def libreoffice_shows(tmp_path: Path, path: Path, password: str) -> str:
    name = f"{tmp_path.name}{len(password)}"
    office = ["soffice", f"-env:UserInstallation=file://{tmp_path}/profile", "--headless", "--norestore"]
    server = subprocess.Popen([*office, f"--accept=pipe,name={name};urp;"], stdout=subprocess.DEVNULL)
    try:
        command = ["/usr/bin/python3", "-c", OPEN, name, str(path), password]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    finally:
        server.terminate()
        server.wait(30)
    return done.stdout.strip() or done.stderr


def has_uno() -> bool:
    if not shutil.which("soffice") or not Path("/usr/bin/python3").exists():
        return False
    return subprocess.run(["/usr/bin/python3", "-c", "import uno"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_uno(), reason="LibreOffice or its Python bridge is not installed")
def test_libreoffice_opens_the_workbook_with_the_password_only(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    path.write_bytes(made(type="excel")[1])
    assert libreoffice_shows(tmp_path, path, PASSWORD) == ROWS[-1]["order_no"]
    assert ROWS[-1]["order_no"] not in libreoffice_shows(tmp_path, path, "wrong password")


def test_workbook_beyond_the_limit_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ENCRYPTED", 10_000)
    with pytest.raises(BadTable, match="rows_per_file"):
        made(type="excel")


def test_parquet_of_a_zip_is_read_back() -> None:
    found = unzipped(made(type="parquet")[1])["export.parquet"]
    assert pyarrow.parquet.read_table(io.BytesIO(found)).num_rows == len(ROWS)


def test_repr_of_an_order_does_not_show_the_password() -> None:
    assert PASSWORD not in repr(Output(password=PASSWORD))
