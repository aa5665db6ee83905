from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import openpyxl
import pytest

from tidegate.sheets.xlsx import TableRows, xlsx_chunks

Render = Callable[..., Any]


@pytest.fixture
def render() -> Render:
    """Renders tables and opens the result with openpyxl."""

    def run(*tables: TableRows, multi_type: str = "page", sheet_rows: int = 1_048_576) -> Any:
        data = b"".join(xlsx_chunks(tables, multi_type=multi_type, sheet_rows=sheet_rows))
        return openpyxl.load_workbook(io.BytesIO(data))

    return run
