"""What whoever ordered a file should know about it."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.exports.rendering.xlsx.xml_text import MAX_CELL_UNITS


@dataclass(slots=True)
class Notes:
    cut_cells: int = 0

    def warnings(self) -> list[str]:
        if not self.cut_cells:
            return []
        cells = "1 cell was" if self.cut_cells == 1 else f"{self.cut_cells} cells were"
        return [f"{cells} cut: Excel holds {MAX_CELL_UNITS:,} characters a cell"]
