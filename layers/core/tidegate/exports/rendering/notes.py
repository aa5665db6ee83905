"""Warnings about a rendered file, for its record."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.exports.rendering.xlsx.xml_text import MAX_CELL_UNITS


@dataclass(slots=True)
class Notes:
    cut_cells: int = 0
    # Parquet: values that are not of their column's type.
    refused_values: int = 0

    def warnings(self) -> list[str]:
        found = []
        if self.cut_cells:
            cells = "1 cell was" if self.cut_cells == 1 else f"{self.cut_cells} cells were"
            found.append(f"{cells} cut: an Excel cell has at most {MAX_CELL_UNITS:,} characters")
        if self.refused_values:
            values = "1 value was" if self.refused_values == 1 else f"{self.refused_values} values were"
            found.append(f"{values} left out, because the template gives the column another type")
        return found
