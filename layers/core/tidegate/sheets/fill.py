"""Filled templates: a workbook that somebody designed, streamed with rows and values in place of its placeholders.

Only cells with placeholders, repeated rows and references that move are written anew. All other parts of the template
keep their bytes, so styles, heights, images, print set-up and extensions stay. If a list is empty, its row stays in the
sheet, but with blank cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from itertools import islice
from typing import Any

from tidegate.common.sequences import Chunk
from tidegate.errors import BadTable
from tidegate.sheets.fill_refs import (
    STILL,
    Block,
    Formulas,
    Piece,
    RowMap,
    column_number,
    moved_area,
    moved_areas,
    moved_cell,
    rows_of,
)
from tidegate.sheets.fill_template import (
    ATTRIBUTES,
    FORMULA,
    FillTemplate,
    Mark,
    MarkedText,
    TemplateCell,
    TemplateRow,
    TemplateSheet,
    attribute_text,
    attributes,
    cells_of,
    element,
    escaped_formula,
    list_names,
    readable,
    without,
)
from tidegate.sheets.rows import RowBlocks, value_text
from tidegate.sheets.table import Notes, Row, SheetTable, column_of, leaves, letters
from tidegate.sheets.values import MAX_CELL_UNITS, clean, is_cut, text_element
from tidegate.sheets.xlsx import SHEET_ROWS, TableRows
from tidegate.sheets.xlsx_cells import Cells, Column, ColumnWriter, cut_units, is_countable, text_cell, wire
from tidegate.sheets.zip import Entry, zip_stream

# --- order


@dataclass(frozen=True, slots=True)
class Filling:
    """A template and the values for its placeholders, by name. Rows come from tables, which a template calls lists."""

    template: FillTemplate
    values: Mapping[str, Any]


def check_lists(template: FillTemplate, titles: Sequence[str]) -> None:
    """Raises BadTable if the template names a list that the order does not have, or has two lists for one table."""
    names = list_names(titles)
    used: dict[int, str] = {}
    for name, marks in template.lists.items():
        if name not in names:
            known = ", ".join(f"{{{each}.…}}" for each in names)
            raise BadTable(
                f"row {marks.row} of {marks.sheet} in the template has {{{name}.{marks.columns[0]}}}, but the order "
                f"has no table {name!r}: use one of {known}, or write \\{{ for a brace that is text"
            )
        if names[name] in used:
            raise BadTable(f"{{{used[names[name]]}.…}} and {{{name}.…}} of the template are the same table")
        used[names[name]] = name


def values_of(given: Mapping[str, Any] | None, tables: Iterable[SheetTable]) -> dict[str, Any]:
    """Returns the values by name. The order's own values precede all others with the same name.

    The others are the texts of headers and footers, the titles and the summaries.
    """
    found: dict[str, Any] = dict(given or {})
    for table in tables:
        for texts in (table.header, table.footer):
            for name, value in texts.items() if isinstance(texts, Mapping) else ():
                found.setdefault(str(name), value)
        found.setdefault("title", table.title or None)
        found.setdefault("summary", table.summary or None)
    return found


def unfilled(filling: Filling, tables: Sequence[TableRows]) -> list[str]:
    """Returns warnings: placeholders without a value, tables without a row in the template, formulas that go wrong."""
    found, names = list[str](), list_names([each.table.title for each in tables])
    missing = [f"{{{name}}}" for name in filling.template.values if filling.values.get(name) is None]
    for name, marks in filling.template.lists.items():
        source = tables[names[name]]
        keys = _keys(source.table, source.keys)
        if source.keys:
            missing += [f"{{{name}.{column}}}" for column in marks.columns if keys(column) not in source.keys]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        found.append(f"fill: nothing was given for {', '.join(missing[:5])}{more}, so these cells are empty")
    book = _any_book(filling)
    formulas = book.see_formulas()
    found += _mixed(filling, book, formulas)
    found += [
        f"fill: a formula computes with {cell} of {sheet.name} in the first row of the list only: SUMPRODUCT takes all"
        for sheet in filling.template.sheets
        for name, cell in sorted(formulas.alone)
        if name == sheet.name.casefold()
    ][:_MOST_ALONE]
    found += Notes(cut_cells=sum(is_cut(text) for *_, text in _texts_of_values(filling))).warnings()
    found += _left_out(filling, book, formulas)
    shown = {names[name] for name in filling.template.lists}
    found += [
        f"fill: the template repeats no row for table {number + 1}, so its rows are not in the file"
        for number, source in enumerate(tables)
        if number not in shown and source.count
    ]
    return found


def not_added(filling: Filling, columns: Mapping[str, Collection[int]]) -> list[str]:
    """Returns the placeholders in these columns that formulas compute with.

    `columns`: columns of the sheets, by list.
    """
    if not any(columns.values()):
        return []
    formulas, found = _any_book(filling).see_formulas(), dict[str, None]()
    for sheet in filling.template.sheets:
        added = formulas.added_columns(sheet.name)
        for _, cell in sheet.marks:
            for mark in cell.marked.marks if cell.marked and cell.column in added else ():
                if mark.list is not None and cell.column in columns.get(mark.list, ()):
                    found[f"{{{mark.list}.{mark.name}}}"] = None
    return list(found)


def _mixed(filling: Filling, book: FilledBook, formulas: Formulas) -> list[str]:
    """Returns warnings about formulas that compute with only one of several rows that are repeated together.

    In the filled sheet, the ranges of these formulas also include the numbers of the other rows.
    """
    sheets = [(sheet, block) for sheet in filling.template.sheets for block in sheet.blocks if block.height > 1]
    apart, found = sorted(formulas.apart), dict[str, None]()
    for sheet, block in sheets:
        # By column: the rows that may have numbers.
        numbers: dict[int, list[int]] = {}
        for row in sheet.rows:
            for cell in row.all_cells() if block.has(row.number) else ():
                if book.may_be_number(cell):
                    numbers.setdefault(cell.column, []).append(row.number)
        for name, first, last, left, right in apart:
            if name != sheet.name.casefold() or first > block.last or last < block.first:
                continue
            for column, rows in numbers.items():
                others = [row for row in (rows[0], rows[-1]) if not first <= row <= last]
                if left <= column <= right and others:
                    found[
                        f"fill: formulas compute with row {max(first, block.first)} of {sheet.name}, but their ranges "
                        f"take in column {letters(column)} of row {others[0]}, which is repeated with it: use another"
                    ] = None
    return list(found)


_MOST_NUMBERS, _MOST_ALONE = 1000, 5


def _texts_of_values(filling: Filling) -> Iterator[tuple[TemplateSheet, int, TemplateCell, str]]:
    """Yields (sheet, row, cell, filled text) of the cells whose placeholders are all values."""
    for sheet in filling.template.sheets:
        for row, cell in sheet.marks:
            if cell.marked and all(mark.list is None for mark in cell.marked.marks):
                texts = (
                    part if isinstance(part, str) else value_text(filling.values.get(part.name))
                    for _, part in cell.marked.parts
                )
                yield sheet, row, cell, "".join(texts)


def _left_out(filling: Filling, book: FilledBook, formulas: Formulas) -> list[str]:
    """Returns a warning about values that look like numbers but are text. Formulas over their cells leave them out.

    Empty if there are no such values.
    """
    found = dict[str, None]()
    texts = (each for each in _texts_of_values(filling) if book.is_number_text(each[2], each[3]))
    for sheet, row, cell, _ in islice(texts, _MOST_NUMBERS):
        if any(
            name == sheet.name.casefold() and first <= row <= last and left <= cell.column <= right
            for name, first, last, left, right in formulas.summands
        ):
            found.update((f"{{{mark.name}}}", None) for mark in (cell.marked.marks if cell.marked else ()))
    advice = "because they are text: send numbers, or give their cells a number format"
    return [f"fill: formulas leave out {', '.join(found)}, {advice}"] if found else []


def _any_book(filling: Filling) -> FilledBook:
    return FilledBook(filling, dict.fromkeys(filling.template.lists, 2))


def _keys(table: SheetTable, keys: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that translates the name of a placeholder into a key of the rows.

    The name is a key itself, or the title of a column.
    """
    titles = {leaf.title: leaf.name for leaf in leaves(table.template.cols)}
    known = set(keys)
    return lambda name: name if name in known else titles.get(name, name)


def filled_chunks(filling: Filling, tables: Sequence[TableRows], notes: Notes | None = None) -> Iterator[Chunk]:
    """Yields the bytes of the filled workbook. The `count` of each table must be the number of its rows."""
    names = list_names([each.table.title for each in tables])
    book = FilledBook(filling, {name: tables[names[name]].count for name in filling.template.lists})
    book.check_rows()
    notes = notes or Notes()

    as_text = dict[str, set[int]]()

    def rows(sheet: TemplateSheet, block: Block) -> Iterator[bytes]:
        source = tables[names[block.name]]
        writer, at = book.writer(sheet, block, source.table, source.keys), 0
        for rows in RowBlocks.from_rows(source.rows):
            yield writer.xml(rows, at)
            at += len(rows)
        if not at:
            yield writer.empty()
        notes.cut_cells += writer.cut_cells
        as_text[block.name] = writer.as_text

    def sheet_chunks(sheet: TemplateSheet) -> Iterator[bytes]:
        for piece in book.sheet(sheet):
            if isinstance(piece, Block):
                yield from rows(sheet, piece)
            else:
                yield piece

    def entries() -> Iterator[Entry]:
        for name, sheet in book.parts():
            yield name, sheet_chunks(sheet) if sheet else [book.part(name)]
        notes.not_added.update(dict.fromkeys(not_added(filling, as_text)))

    return zip_stream(entries())


def table_writers(filling: Filling, tables: Sequence[TableRows], count: int = 1) -> list[BlockWriter]:
    """Returns a writer for each table. Empty if the template repeats no row for some table.

    `count`: the number of rows in each list. This number decides where the rows below a list are.
    """
    names = list_names([each.table.title for each in tables])
    book = FilledBook(filling, dict.fromkeys(filling.template.lists, count))
    found: dict[int, BlockWriter] = {}
    for sheet in filling.template.sheets:
        for block in sheet.blocks:
            source = tables[names[block.name]]
            found[names[block.name]] = book.writer(sheet, block, source.table, source.keys)
    return [found[number] for number in range(len(tables))] if len(found) == len(tables) else []


def can_be_in_parts(filling: Filling, tables: Sequence[TableRows]) -> bool:
    """Whether rows can be written before their number is known.

    That is possible if the template has a list for each table, no list is below another list, and no formula of a
    repeated row refers to cells that move.
    """
    short, long = (table_writers(filling, tables, count) for count in (1, 2))
    return bool(short) and [each.form for each in short] == [each.form for each in long]


# --- book


class FilledBook:
    """Makes the parts of a filled workbook, except the rows of its lists.

    The number of rows of each list must be known.
    """

    def __init__(self, filling: Filling, counts: Mapping[str, int]) -> None:
        self._template, self._values, self._counts = filling.template, filling.values, counts
        self._package = self._template.package
        self._maps = {sheet.name.casefold(): RowMap(sheet.blocks, counts) for sheet in self._template.sheets}
        self._formulas = Formulas(self._maps)
        # Whether any row moves: rules, names and charts of all sheets may refer to it.
        self._moves = any(rows.moves for rows in self._maps.values())
        self._sheets = {sheet.part: sheet for sheet in self._template.sheets}
        self._owners = self._parts_of_sheets()

    def check_rows(self) -> None:
        for sheet in self._template.sheets:
            needed = self.rows_of(sheet).last_row(sheet.last_row)
            if needed > SHEET_ROWS:
                raise BadTable(
                    f"the filled sheet {sheet.name} needs {needed} rows, but a sheet has {SHEET_ROWS}: split the rows "
                    "into several files with rows_per_file"
                )

    def rows_of(self, sheet: TemplateSheet) -> RowMap:
        return self._maps[sheet.name.casefold()]

    def parts(self) -> Iterator[tuple[str, TemplateSheet | None]]:
        """Yields (name, sheet) of each part, in order. The sheet is None if the part is not a worksheet."""
        for name in sorted(self._package.names, key=lambda name: name != "[Content_Types].xml"):
            if not name.endswith("/calcChain.xml"):
                yield name, self._sheets.get(name)

    def part(self, name: str) -> bytes:
        """Returns the content of a part that is not a worksheet."""
        with readable(f"the part {name} of the template"):
            return self._part(name)

    def _part(self, name: str) -> bytes:
        package = self._package
        if name == "[Content_Types].xml":
            return package.content_types().encode()
        if name == package.main:
            return self._workbook(package.text(name)).encode()
        if name.endswith("workbook.xml.rels"):
            return without(package.text(name), "Relationship", "calcChain.xml").encode()
        if name.startswith("xl/charts/") and name.endswith(".xml"):
            return self._chart(package.text(name)).encode()
        if "pivotCacheDefinition" in name and name.endswith(".xml"):
            return self._pivot_source(package.text(name)).encode()
        kind, sheet = self._owners.get(name, ("", None))
        if sheet is None or not self._moves:
            return package.read(name)
        if kind in _MOVED_PARTS:
            return _MOVED_PARTS[kind](package.text(name), self.rows_of(sheet), self._formulas, sheet.name).encode()
        return package.read(name)

    def see_formulas(self) -> Formulas:
        """Reads all formulas and returns what they compute with. This does not need the rows of the lists."""
        for name, sheet in self.parts():
            for piece in self.sheet(sheet) if sheet else [self.part(name)]:
                if sheet and isinstance(piece, Block):
                    self.writer(sheet, piece, SheetTable(), ())
        return self._formulas

    def may_be_number(self, cell: TemplateCell) -> bool:
        if cell.marked:
            return cell.marked.only is not None and self._column(cell, "").may_be_number
        return "<f" in cell.content or ("<v" in cell.content and cell.attributes.get("t", "n") == "n")

    def is_number_text(self, cell: TemplateCell, text: str) -> bool:
        """Whether this text in the cell looks like a number to people, although it is stored as text."""
        if not is_countable(text):
            return False
        return self._column(cell, "").is_to_count and ' t="inlineStr"' in self._marked(cell)

    def _parts_of_sheets(self) -> dict[str, tuple[str, TemplateSheet]]:
        """Returns (kind, sheet) of each part that belongs to one sheet, by the part's name."""
        return {
            part: (kind, sheet)
            for sheet in self._template.sheets
            for kind, part in self._package.rels(sheet.part).values()
        }

    def _workbook(self, text: str) -> str:
        def renamed(match: re.Match[str]) -> str:
            # Ranges that are printed or filtered are not computed with.
            reads = "_xlnm." not in match[1]
            formula = self._formulas.text(unescape(match[2] or ""), "", whole=True, added=reads)
            return f"<definedName{match[1]}>{escaped_formula(formula)}</definedName>"

        text = element("definedName").sub(renamed, text)
        # The stored results of formulas are removed, so Excel must compute them when it opens the file.
        calculated = re.search(rf"<calcPr({ATTRIBUTES})\s*/>", text)
        if calculated:
            given = attributes(calculated[1]) | {"fullCalcOnLoad": "1"}
            return text.replace(calculated[0], f"<calcPr{attribute_text(given)}/>")
        for end in ("</definedNames>", "</sheets>"):
            if end in text:
                return text.replace(end, f'{end}<calcPr fullCalcOnLoad="1"/>', 1)
        return text

    def _chart(self, text: str) -> str:
        for cache in ("numCache", "strCache", "multiLvlStrCache"):
            text = element(cache).sub("", text)
        return FORMULA.sub(lambda match: self._formula_element(match, "", None, whole=True), text)

    def _pivot_source(self, text: str) -> str:
        def moved(given: dict[str, str]) -> None:
            rows = self._maps.get(unescape(given.get("sheet", "")).casefold(), STILL)
            if "ref" in given:
                given["ref"] = moved_area(given["ref"], rows)

        text = _retagged(text, "worksheetSource", moved)
        return _retagged(text, "pivotCacheDefinition", lambda given: given.update(refreshOnLoad="1"))

    def _formula_element(self, match: re.Match[str], sheet: str, at: int | None, *, whole: bool = False) -> str:
        formula = self._formulas.text(unescape(match[2] or ""), sheet, at=at, whole=whole, added=whole)
        return match[0].replace(f">{match[2]}<", f">{escaped_formula(formula)}<") if match[2] else match[0]

    # --- sheets

    def sheet(self, sheet: TemplateSheet) -> Iterator[bytes | Block]:
        """Yields the XML of a sheet, and a Block at each place where the rows of a list belong."""
        rows = self.rows_of(sheet)
        yield (_moved_head(sheet.head, rows) + "<sheetData>").encode()
        held, done = list[str](), 0
        for row in sheet.rows:
            block = rows.block_of(row.number)
            if block is None:
                # Some programs write rows without cells down to the last row of a sheet: leave out what does not fit.
                if rows.last_row(row.number) <= SHEET_ROWS:
                    held.append(self._row(sheet, row, rows))
            elif block.last > done:
                yield "".join(held).encode()
                held, done = [], block.last
                yield block
        yield ("".join(held) + "</sheetData>").encode()
        yield from self._tail(sheet, rows)

    def _row(self, sheet: TemplateSheet, row: TemplateRow, rows: RowMap) -> str:
        number = rows.start(row.number)
        if row.cells is None:
            return row.xml if number == row.number else _renumbered(row.xml, number)
        cells = "".join(self._cell(sheet, cell, number) for cell in row.cells)
        return f'<row r="{number}"{attribute_text(row.attributes)}>{cells}</row>'

    def _cell(self, sheet: TemplateSheet, cell: TemplateCell, number: int) -> str:
        at = f'r="{letters(cell.column)}{number}"'
        if cell.marked:
            return f"<c {at[:-1]}{self._marked(cell)}"
        given = cell.attributes
        if match := FORMULA.search(cell.content):
            given = {name: value for name, value in given.items() if name != "t"}
            return f"<c {at}{attribute_text(given)}>{self._static_formula(match, sheet)}</c>"
        return f"<c {at}{attribute_text(given)}>{cell.content}</c>" if cell.content else _blank(at, given)

    def _static_formula(self, match: re.Match[str], sheet: TemplateSheet) -> str:
        given = attributes(match[1])
        for name in ("ref", "r1", "r2"):
            if name in given:
                given[name] = moved_area(given[name], self.rows_of(sheet))
        # An array formula computes list by list.
        formula = self._formulas.text(unescape(match[2] or ""), sheet.name, whole=given.get("t") == "array")
        return f"<f{attribute_text(given)}>{escaped_formula(formula)}</f>"

    def _marked(self, cell: TemplateCell) -> str:
        """Returns the XML of a cell whose placeholders are all values, not columns of a list."""
        marked, writer = cell.marked, self._column(cell, "")
        assert marked is not None
        if mark := marked.only:
            return writer.cell(self._values.get(mark.name))
        parts = [(font, part if isinstance(part, str) else self._text(part)) for font, part in marked.parts]
        return _rich_cell(parts, cell.style)

    def _text(self, mark: Mark) -> str:
        return value_text(self._values.get(mark.name))

    def _column(self, cell: TemplateCell, key: str, *, typed: bool = True) -> ColumnWriter:
        kinds = self._template.kinds
        return ColumnWriter(Column(key, cell.style, kinds[cell.style] if typed and cell.style < len(kinds) else None))

    def _tail(self, sheet: TemplateSheet, rows: RowMap) -> Iterator[bytes]:
        """Yields the XML after the rows; in parts, because there may be as many merged cells as repeated rows."""
        before, merges, after = sheet.tail, "", ""
        if match := element("mergeCells").search(sheet.tail):
            before, after = sheet.tail[: match.start()], sheet.tail[match.end() :]
            merges = match[0]
        if not self._moves:
            yield sheet.tail.encode()
            return
        yield _moved_tail(before, rows, self._formulas, sheet.name).encode()
        if merges:
            yield b"<mergeCells>"
            yield from _merges(sheet, rows)
            yield b"</mergeCells>"
        yield _moved_tail(after, rows, self._formulas, sheet.name).encode()

    # --- lists

    def writer(self, sheet: TemplateSheet, block: Block, table: SheetTable, keys: Sequence[str]) -> BlockWriter:
        rows, key_of = self.rows_of(sheet), _keys(table, keys)
        writer = BlockWriter(block.height)
        by_number = {row.number: row for row in sheet.rows if block.has(row.number)}
        for number in range(block.first, block.last + 1):
            row = by_number.get(number) or TemplateRow(number, {}, "")
            at = rows.start(number)
            writer.begin_row(at, attribute_text(row.attributes))
            for cell in row.all_cells():
                column = letters(cell.column)
                if cell.marked and any(mark.list is not None for mark in cell.marked.marks):
                    self._put_marked(writer, at, cell, key_of)
                elif cell.marked:
                    writer.put(column, at, [self._marked(cell)[1:]], cell.style)
                elif match := FORMULA.search(cell.content):
                    given = {name: value for name, value in cell.attributes.items() if name != "t"}
                    formula = self.formula(sheet, number, cell.column, match)
                    writer.put(column, at, [f"{attribute_text(given)}>", *formula, "</c>"], cell.style)
                else:
                    given = cell.attributes
                    end = f">{cell.content}</c>" if cell.content else "/>"
                    writer.put(column, at, [f"{attribute_text(given)}{end}"], cell.style)
            writer.end_row()
        return writer

    def formula(self, sheet: TemplateSheet, row: int, column: int, match: re.Match[str]) -> list[Piece]:
        """Returns the pieces of the `<f>` element of a formula in a repeated row."""
        given, pieces = attributes(match[1]), list[Piece](["<f"])
        for name, value in given.items():
            moved = self._formulas.pieces(value, sheet.name, row, column) if name == "ref" else [value]
            pieces += [f' {name}="', *moved, '"']
        formula = self._formulas.pieces(unescape(match[2] or ""), sheet.name, row, column)
        escaped = [escaped_formula(each) if isinstance(each, str) else each for each in formula]
        return [*pieces, ">", *escaped, "</f>"]

    def _put_marked(self, writer: BlockWriter, at: int, cell: TemplateCell, key_of: Callable[[str], str]) -> None:
        marked = cell.marked
        assert marked is not None
        column = letters(cell.column)
        if mark := marked.only:
            writer.put_column(column, at, self._column(cell, key_of(mark.name)))
            return
        parts = tuple(
            (
                font,
                part
                if isinstance(part, str)
                else self._text(part)
                if part.list is None
                else Mark("", key_of(part.name)),
            )
            for font, part in marked.parts
        )
        writer.put_column(column, at, self._column(cell, "", typed=False), MarkedText(parts))


def _renumbered(xml: str, number: int) -> str:
    """Returns a row without placeholders and formulas, with another row number."""
    given = {name: value for name, value in attributes(_ROW_START.match(xml)[1]).items() if name != "r"}  # type: ignore[index]
    texts = [
        f'<c r="{letters(cell.column)}{number}"{attribute_text(cell.attributes)}'
        + (f">{cell.content}</c>" if cell.content else "/>")
        for cell in cells_of(xml)
    ]
    return f'<row r="{number}"{attribute_text(given)}>{"".join(texts)}</row>'


_ROW_START = re.compile(rf"<row({ATTRIBUTES})")


def _blank(at: str, given: dict[str, str]) -> str:
    return f"<c {at}{attribute_text(given)}/>"


def _rich_cell(parts: Sequence[tuple[str, str]], style: int) -> str:
    if any(font for font, _ in parts):
        if sum(len(text) for _, text in parts) > MAX_CELL_UNITS // 2:
            parts = _cut_runs(parts)
        runs = "".join(f"<r>{font}{text_element(text)}</r>" for font, text in parts if text)
        return f'" s="{style}" t="inlineStr"><is>{runs or "<t/>"}</is></c>'
    return text_cell("".join(text for _, text in parts), style)


def _cut_runs(parts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the runs of a text, cut so that together they fit into a cell."""
    cut, room = list[tuple[str, str]](), MAX_CELL_UNITS
    for font, text in parts:
        cut.append((font, cut_units(clean(text), room)))
        room -= len(cut[-1][1].encode("utf-16-le")) // 2
    return cut


# --- repeated rows

_Slot = str | int | tuple[ColumnWriter, MarkedText | None]


class BlockWriter:
    """Writes the repetitions of the rows of a block, many at a time.

    A repetition is a fixed sequence of slots: markup, row numbers, and cells of a column. The slots of all repetitions
    are laid into one list, which is joined once.
    """

    def __init__(self, height: int) -> None:
        self._height = height
        # Each: markup, or the row number in the first repetition, or a column.
        self._slots: list[_Slot] = []
        # The slots that are a column of the list: (number of the column in the sheet, writer).
        self._columns: list[tuple[int, ColumnWriter]] = []
        self._empty: list[str] = []

    @property
    def form(self) -> list[str | int | MarkedText | None]:
        """The slots that do not depend on values.

        Two writers of one table write equal rows if their forms are equal.
        """
        return [slot[1] if isinstance(slot, tuple) else slot for slot in self._slots]

    @property
    def cut_cells(self) -> int:
        return sum(slot[0].cut for slot in self._slots if isinstance(slot, tuple))

    @property
    def as_text(self) -> set[int]:
        """The columns of the sheet that have numbers as text. Formulas leave out such numbers."""
        return {column for column, writer in self._columns if writer.has_number_texts}

    def begin_row(self, number: int, given: str) -> None:
        self._add('<row r="', number, f'"{given}>')
        self._empty.append(f'<row r="{number}"{given}>')

    def end_row(self) -> None:
        self._add("</row>")
        self._empty.append("</row>")

    def put(self, column: str, number: int, pieces: Sequence[Piece], style: int = 0) -> None:
        """Adds a cell that differs between repetitions only in row numbers.

        `pieces`: what follows the cell's `r` attribute.
        """
        self._add(f'<c r="{column}', number, '"')
        self._add(*(piece if isinstance(piece, str) else piece.first for piece in pieces))
        self._empty.append(f'<c r="{column}{number}" s="{style}"/>')

    def put_column(self, column: str, number: int, writer: ColumnWriter, text: MarkedText | None = None) -> None:
        """Adds a cell of a column. With `text`, the text of the cell is made of literals and several columns."""
        self._add(f'<c r="{column}', number)
        self._slots.append((writer, text))
        self._columns.append((column_number(column), writer))
        self._empty.append(f'<c r="{column}{number}{writer.blank}')

    def _add(self, *slots: str | int) -> None:
        for slot in slots:
            if isinstance(slot, str) and self._slots and isinstance(self._slots[-1], str):
                self._slots[-1] += wire(slot)
            else:
                self._slots.append(wire(slot) if isinstance(slot, str) else slot)

    def empty(self) -> bytes:
        """Returns the rows of the block for a list without rows: once, and with blank cells."""
        return "".join(self._empty).encode()

    def xml(self, rows: Sequence[Row], at: int) -> bytes:
        """Returns the XML of these rows. `at`: the number of the first of these rows in the list, from 0."""
        count, height = len(rows), self._height
        tracks, after, blanks = list[list[str]](), "", list[int]()
        numbers: dict[int, list[str]] = {}
        for slot in self._slots:
            if isinstance(slot, str):
                track = [after + slot] * count
                for index in blanks:
                    track[index] = slot
                tracks.append(track)
                after, blanks = "", []
            elif isinstance(slot, int):
                if slot not in numbers:
                    start = slot + at * height
                    numbers[slot] = list(map(str, range(start, start + count * height, height)))
                tracks.append(numbers[slot])
            else:
                writer, text = slot
                cells = _cells(writer, text, rows)
                if not cells.before:
                    tracks.append(cells.texts)
                    continue
                before, texts, blanks = [cells.before] * count, cells.texts, cells.blanks
                if blanks:
                    texts = list(texts)
                for index in blanks:
                    before[index], texts[index] = writer.blank, ""
                tracks += [before, texts]
                after = cells.after
        flat = [""] * (len(tracks) * count)
        for index, track in enumerate(tracks):
            flat[index :: len(tracks)] = track
        return "".join(flat).encode("latin-1")


def _cells(writer: ColumnWriter, text: MarkedText | None, rows: Sequence[Row]) -> Cells:
    if text is None:
        values = column_of(rows, writer.key)
    else:
        columns = [
            [part] * len(rows) if isinstance(part, str) else list(map(value_text, column_of(rows, part.name)))
            for _, part in text.parts
        ]
        values = list(map("".join, zip(*columns, strict=True)))
    if text is None or not text.is_rich:
        cells = writer.cells(values)
    else:
        fonts = [font for font, _ in text.parts]
        style = int(re.search(r"\d+", writer.blank)[0])  # type: ignore[index]
        writer.cut += sum(len(value) > MAX_CELL_UNITS // 2 and is_cut(value) for value in values)
        made = (_rich_cell(list(zip(fonts, texts, strict=True)), style) for texts in zip(*columns, strict=True))
        cells = Cells("", list(map(wire, made)), "", [])
    writer.look_for_number_texts(values, cells)
    return cells


# --- what refers to rows that move


def _retagged(text: str, names: str, change: Callable[[dict[str, str]], object]) -> str:
    """Returns the text with changed attributes in the elements `names`, which are separated by `|`."""

    def changed(match: re.Match[str]) -> str:
        given = attributes(match[2])
        change(given)
        return f"<{match[1]}{attribute_text(given)}{match[3]}"

    return re.sub(rf"<({names})({ATTRIBUTES})(\s*/?>)", changed, text)


def _with_areas(text: str, names: str, attribute: str, rows: RowMap) -> str:
    def moved(given: dict[str, str]) -> None:
        if attribute in given:
            given[attribute] = moved_areas(given[attribute], rows)

    return _retagged(text, names, moved)


def _with_cells(text: str, names: str, given_names: Sequence[str], rows: RowMap) -> str:
    def moved(given: dict[str, str]) -> None:
        for name in given_names:
            if name in given:
                given[name] = " ".join(moved_cell(each, rows) for each in given[name].split())

    return _retagged(text, names, moved)


def _moved_head(text: str, rows: RowMap) -> str:
    if not rows.moves:
        return text
    text = _with_areas(text, "dimension", "ref", rows)
    text = _with_cells(text, "sheetView|pane", ["topLeftCell"], rows)
    return _with_cells(text, "selection", ["activeCell", "sqref"], rows)


def _moved_tail(text: str, rows: RowMap, formulas: Formulas, sheet: str) -> str:
    text = _with_areas(text, "autoFilter|sortState|sortCondition|hyperlink", "ref", rows)
    text = _with_areas(text, "protectedRange|ignoredError", "sqref", rows)
    for name, inner in (("conditionalFormatting", "formula"), ("dataValidation", "formula[12]")):
        text = element(name).sub(partial(_moved_rule, inner, rows, formulas, sheet), text)
    for name in ("x14:conditionalFormatting", "x14:dataValidation"):
        text = element(name).sub(lambda match: _moved_extension(match, rows, formulas, sheet), text)
    sparklines = 0

    def repeated(match: re.Match[str]) -> str:
        nonlocal sparklines
        copies = _sparklines(match, rows, formulas, sheet, _MOST_SPARKLINES - sparklines)
        sparklines += len(copies)
        return "".join(copies)

    text = element("x14:sparkline").sub(repeated, text)

    def broken(given: dict[str, str]) -> None:
        row = given.get("id", "")
        given["id"] = str(rows.end(int(row))) if re.fullmatch("[0-9]{1,9}", row) else row

    return element("rowBreaks").sub(lambda match: _retagged(match[0], "brk", broken), text)


def _moved_rule(inner: str, rows: RowMap, formulas: Formulas, sheet: str, match: re.Match[str]) -> str:
    """Returns a conditional format or a validation for the moved cells.

    The formulas of such a rule are relative to the first of its cells.
    """
    given = attributes(match[1])
    areas = given.get("sqref", "")
    given["sqref"] = moved_areas(areas, rows)
    first = rows_of(areas.split()[0]) if areas.split() else None
    name = re.split(r"[\s/>]", match[0][1:], maxsplit=1)[0]
    if match[2] is None:
        return f"<{name}{attribute_text(given)}/>"
    content = _with_formulas(match[2], inner, formulas, sheet, first[0] if first else None)
    # The bounds of colours, bars and icons.
    content = _with_references(content, "val", formulas, sheet)
    return f"<{name}{attribute_text(given)}>{content}</{name}>"


def _moved_extension(match: re.Match[str], rows: RowMap, formulas: Formulas, sheet: str) -> str:
    areas = re.search(r"<xm:sqref>([^<]*)</xm:sqref>", match[0])
    first = rows_of(areas[1].split()[0]) if areas and areas[1].split() else None
    text = _with_formulas(match[0], "xm:f", formulas, sheet, first[0] if first else None)
    return re.sub(
        r"<xm:sqref>([^<]*)</xm:sqref>", lambda found: f"<xm:sqref>{moved_areas(found[1], rows)}</xm:sqref>", text
    )


def _with_references(text: str, names: str, formulas: Formulas, sheet: str) -> str:
    """Returns the text with moved references in the attributes `names`, which are separated by `|`."""

    def moved(match: re.Match[str]) -> str:
        formula = escaped_formula(formulas.text(unescape(match[2]), sheet)).replace('"', "&quot;")
        return f'{match[1]}{formula}"'

    return re.sub(rf'(\s(?:{names})=")([^"]*)"', moved, text)


def _with_formulas(text: str, name: str, formulas: Formulas, sheet: str, at: int | None) -> str:
    def moved(match: re.Match[str]) -> str:
        formula = formulas.text(unescape(match[3]), sheet, at=at)
        return f"<{match[1]}{match[2]}>{escaped_formula(formula)}</{match[1]}>"

    return re.sub(rf"<({name})({ATTRIBUTES})\s*>(.*?)</\1\s*>", moved, text, flags=re.DOTALL)


_MOST_SPARKLINES = 50_000


def _sparklines(match: re.Match[str], rows: RowMap, formulas: Formulas, sheet: str, most: int) -> list[str]:
    """Returns the moved sparkline, once for each repetition of its row.

    Raises BadTable if there are more than `most`.
    """
    place = re.search(r"<xm:sqref>\s*([^<\s]*)\s*</xm:sqref>", match[0])
    formula = re.search(r"<xm:f>([^<]*)</xm:f>", match[0])
    area = rows_of(place[1]) if place else None
    block = rows.block_of(area[0]) if area else None
    if place is None or formula is None or area is None or block is None:
        return [_moved_extension(match, rows, formulas, sheet)]
    if rows.times(block) > most:
        raise BadTable(
            f"the sheet {sheet} would have more than {_MOST_SPARKLINES} sparklines: remove them from the repeated row, "
            "or split the rows into several files with rows_per_file"
        )
    pieces, made = formulas.pieces(unescape(formula[1]), sheet, area[0], held=True), list[str]()
    for down in range(0, rows.times(block) * block.height, block.height):
        text = "".join(each if isinstance(each, str) else str(each.first + down) for each in pieces)
        cell = re.sub(r"\d+", str(rows.start(area[0]) + down), place[1])
        copy = match[0].replace(formula[0], f"<xm:f>{escaped_formula(text)}</xm:f>")
        made.append(copy.replace(place[0], f"<xm:sqref>{cell}</xm:sqref>"))
    return made


_MERGES_IN_PART = 10_000


def _merges(sheet: TemplateSheet, rows: RowMap) -> Iterator[bytes]:
    """Yields the elements of merged cells. Merged cells within repeated rows are repeated with the rows."""
    made = list[str]()
    for merge in sheet.merges:
        area = rows_of(merge)
        block = rows.block_of(area[0]) if area else None
        if area is None or block is None or not block.has(area[1]):
            made.append(f'<mergeCell ref="{moved_area(merge, rows)}"/>')
            continue
        left, right = (re.sub(r"[$\d]", "", corner) for corner in (*merge.split(":"), merge)[:2])
        top, height = rows.start(area[0]), area[1] - area[0]
        for row in range(top, top + rows.times(block) * block.height, block.height):
            made.append(f'<mergeCell ref="{left}{row}:{right}{row + height}"/>')
            if len(made) >= _MERGES_IN_PART:
                yield "".join(made).encode()
                made = []
    yield "".join(made).encode()


def _moved_table(text: str, rows: RowMap, formulas: Formulas, sheet: str) -> str:
    text = _with_areas(text, "table|autoFilter|sortState|sortCondition", "ref", rows)
    area = rows_of(attributes((re.search(rf"<table({ATTRIBUTES})", text) or [""] * 2)[1]).get("ref", ""))
    text = _with_formulas(text, "totalsRowFormula", formulas, sheet, None)
    return _with_formulas(text, "calculatedColumnFormula", formulas, sheet, area[0] if area else None)


def _moved_drawing(text: str, rows: RowMap, formulas: Formulas, sheet: str) -> str:
    """Returns the drawing with moved images and charts, and with moved references in texts that are linked to cells.

    An image or a chart moves as far as the row of its upper edge, and keeps its size.
    """

    def moved(match: re.Match[str]) -> str:
        upper = element("from").search(match[0])
        top = re.search(r"<row>([0-9]{1,9})</row>", upper[0]) if upper else None
        shift = rows.start(int(top[1]) + 1) - int(top[1]) - 1 if top else 0

        def shifted(edge: re.Match[str]) -> str:
            return re.sub(r"<row>([0-9]{1,9})</row>", lambda row: f"<row>{int(row[1]) + shift}</row>", edge[0])

        return element("to").sub(shifted, element("from").sub(shifted, match[0]))

    for name in ("twoCellAnchor", "oneCellAnchor"):
        text = element(name).sub(moved, text)
    return _with_references(text, "textlink|cellRange", formulas, sheet)


def _moved_notes(text: str, rows: RowMap, _formulas: Formulas, _sheet: str) -> str:
    """Returns the part that has the boxes of comments. Each box moves as far as the row of its cell."""

    def moved(shape: str) -> str:
        row = re.search(r"(<\w+:Row>)\s*([0-9]{1,9})\s*<", shape)
        shift = rows.start(int(row[2]) + 1) - int(row[2]) - 1 if row else 0
        if not shift or row is None:
            return shape
        shape = shape.replace(row[0], f"{row[1]}{int(row[2]) + shift}<")
        return re.sub(r"(<\w+:Anchor>)([^<]*)", lambda box: box[1] + _shifted(box[2], shift), shape)

    # Not by one pattern: this part need not be valid XML, and a start may have no end.
    made, at = list[str](), 0
    for start in re.finditer(r"<(\w+:shape)\b", text):
        if start.start() < at:
            continue
        if (end := text.find(f"</{start[1]}>", start.end())) < 0:
            break
        made += text[at : start.start()], moved(text[start.start() : end])
        at = end
    return "".join([*made, text[at:]])


def _shifted(anchor: str, shift: int) -> str:
    """Returns the position of a box, moved down by `shift` rows. Other text is returned unchanged.

    A position has eight numbers. The third and the seventh of them are rows.
    """
    numbers = [each.strip() for each in anchor.split(",")]
    if len(numbers) != 8:
        return anchor
    if not all(re.fullmatch("[0-9]{1,9}", numbers[index]) for index in (2, 6)):
        return anchor
    return ", ".join(str(int(each) + shift) if index in (2, 6) else each for index, each in enumerate(numbers))


_MOVED_PARTS: dict[str, Callable[[str, RowMap, Formulas, str], str]] = {
    "table": _moved_table,
    "comments": lambda text, rows, *_: _with_cells(text, "comment", ["ref"], rows),
    "threadedComment": lambda text, rows, *_: _with_cells(text, "threadedComment", ["ref"], rows),
    "pivotTable": lambda text, rows, *_: _with_areas(text, "location", "ref", rows),
    "drawing": _moved_drawing,
    "vmlDrawing": _moved_notes,
}
