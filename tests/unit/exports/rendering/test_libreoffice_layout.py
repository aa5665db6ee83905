"""LibreOffice, which shares no code with the writer, shows the documented example table as documented."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from openpyxl.utils import get_column_letter

from tests.pictures.export_layout import converted, seed_workbook

SPANS = {
    "员工信息表": "A1:L1",
    "人员": "D4:I4",
    "姓名": "D5:D8",
    "其它": "E5:I5",
    "年龄": "E6:E8",
    "爱好": "G6:I6",
    "室内": "G7:G8",
    "室外": "H7:I7",
    "住址": "J4:L4",
    "城市": "J5:J8",
    "小区": "K5:L5",
    "楼盘": "L6:L8",
    "云研发": "A9:A14",
    "前端": "B9:C10",
    "后端": "B11:C14",
    "线下": "A15:A22",
    "OS": "B15:C17",
    "智能设备": "B18:B22",
    "手持终端": "C18:C19",
    "大屏": "C20:C22",
}


class TableSpans(HTMLParser):
    """Places the cells of an HTML table as a browser does."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[str, str] = {}
        self._taken: set[tuple[int, int]] = set()
        self._row = 0
        self._here = ""
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self._row += 1
        if tag == "td":
            attributes = dict(attrs)
            height, width = (int(attributes.get(name) or 1) for name in ("rowspan", "colspan"))
            col = next(col for col in range(1, 99) if (self._row, col) not in self._taken)
            self._taken |= {(self._row + down, col + right) for down in range(height) for right in range(width)}
            last = f"{get_column_letter(col + width - 1)}{self._row + height - 1}"
            self._here, self._text = f"{get_column_letter(col)}{self._row}:{last}", ""

    def handle_data(self, data: str) -> None:
        self._text += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._text:
            self.spans.setdefault(self._text, self._here)


@pytest.mark.parametrize("office", [office for office in ("soffice",) if shutil.which(office)])
def test_libreoffice_shows_the_documented_layout(office: str, tmp_path: Path) -> None:
    table = TableSpans()
    table.feed(converted(seed_workbook(tmp_path / "seed.xlsx"), "html").read_text(encoding="utf-8"))

    assert {title: table.spans[title] for title in SPANS} == SPANS
