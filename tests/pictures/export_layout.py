"""Makes the README's picture of an export: the seed's example table, rendered by us and drawn by LibreOffice.

python -m tests.pictures.export_layout [docs/images/export-layout.png]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.support.exports.samples import SEED_TABLE, seed_rows
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

PICTURE = Path("docs/images/export-layout.png")
DOTS_PER_INCH = 110
CROP = {"x": 60, "y": 95, "W": 1155, "H": 630}


def converted(workbook: Path, kind: str) -> Path:
    """What LibreOffice makes of a workbook, beside it."""
    command = ["soffice", f"-env:UserInstallation=file://{workbook.parent}/profile", "--headless"]
    command += ["--convert-to", kind, "--outdir", str(workbook.parent), str(workbook)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return workbook.with_suffix(f".{kind}")


def seed_workbook(path: Path) -> Path:
    table = replace(SEED_TABLE, default_width=62, default_height=20)
    path.write_bytes(b"".join(xlsx_chunks([TableRows(table, [], seed_rows())])))
    return path


def main() -> None:
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        pdf = converted(seed_workbook(Path(place) / "layout.xlsx"), "pdf")
        area = [word for side, dots in CROP.items() for word in (f"-{side}", str(dots))]
        page = ["pdftoppm", "-png", "-singlefile", "-gray", "-r", str(DOTS_PER_INCH), *area]
        subprocess.run([*page, str(pdf), str(picture.with_suffix(""))], check=True)


if __name__ == "__main__":
    main()
