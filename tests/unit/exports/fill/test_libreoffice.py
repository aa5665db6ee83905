"""LibreOffice, which shares no code with the writer, calculates filled templates as expected."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.exports.fill import filled, recalculated, sheet_of

pytestmark = pytest.mark.skipif(not shutil.which("soffice"), reason="LibreOffice is not installed")


def test_libreoffice_calculates_over_the_list(tmp_path: Path) -> None:
    template = sheet_of(
        {
            "A1": "=COUNT(A4:A4)",
            "B1": "{rate}",
            "A4": "{.id}",
            "B4": "{.price}",
            "C4": "=A4*B4",
            "D4": "=SUM(D3,C4)",
            "E4": "=C4*B1",
            "F4": "=C4/SUM(C$4:C$4)",
            "A5": "Sum",
            "B5": "=AVERAGE(B4)",
            "C5": "=SUM(C4:C4)",
            "F5": "=SUM(F4)",
        }
    )
    rows = [{"id": number, "price": number + 0.5} for number in range(1, 101)]
    data = filled(template, rows, values={"rate": 2})

    sheet = recalculated(data, tmp_path)["Report"]

    amounts = [number * (number + 0.5) for number in range(1, 101)]
    assert sheet["A1"].value == 100
    assert [sheet[f"C{row}"].value for row in range(4, 104)] == amounts
    assert sheet["D103"].value == sheet["C104"].value == sum(amounts)
    assert sheet["E103"].value == amounts[-1] * 2
    assert sheet["B104"].value == 51
    assert sheet["F104"].value == pytest.approx(1)
