"""Filled templates: a designed workbook with rows and values in place of its placeholders, streamed.

Only what placeholders, repeated rows and moving references touch is written anew; all other parts of the template keep
their bytes, so styles, heights, images, print set-up and extensions stay. An empty list keeps its row, without content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Any

from tidegate.common.sequences import Chunk
from tidegate.errors import BadTable
from tidegate.sheets.fill_refs import (
    STILL,
    Block,
    Formulas,
    Piece,
    RowMap,
    moved_area,
    moved_areas,
    moved_cell,
    place,
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
    element,
    escaped_formula,
    list_names,
    without,
)
from tidegate.sheets.rows import RowBlocks, value_text
from tidegate.sheets.table import Row, SheetTable, column_of, leaves, letters
from tidegate.sheets.values import text_element
from tidegate.sheets.xlsx import SHEET_ROWS, TableRows
from tidegate.sheets.xlsx_cells import Cells, Column, ColumnWriter, Notes, text_cell, wire
from tidegate.sheets.zip import Entry, zip_stream

# --- order


@dataclass(frozen=True, slots=True)
class Filling:
    """What is filled into a template: `values` by name, and the rows of tables, which it calls lists."""

    template: FillTemplate
    values: Mapping[str, Any]


def check_lists(template: FillTemplate, titles: Sequence[str]) -> None:
    """BadTable if the template names a list that is none of the tables, which have these titles."""
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
    """The values by name: those of the order; then the labels of headers and footers; then title and summary."""
    found: dict[str, Any] = dict(given or {})
    for table in tables:
        for texts in (table.header, table.footer):
            for name, value in texts.items() if isinstance(texts, Mapping) else ():
                found.setdefault(str(name), value)
        found.setdefault("title", table.title or None)
        found.setdefault("summary", table.summary or None)
    return found


def unfilled(filling: Filling, tables: Sequence[TableRows]) -> list[str]:
    """Warnings about placeholders that nothing is for, and tables that the template has no row for."""
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
    shown = {names[name] for name in filling.template.lists}
    found += [
        f"fill: the template repeats no row for table {number + 1}, so its rows are not in the file"
        for number, source in enumerate(tables)
        if number not in shown and source.count
    ]
    return found


def _keys(table: SheetTable, keys: Sequence[str]) -> Callable[[str], str]:
    """The key of the column that a placeholder names: by its key, else by its title in the template of the order."""
    titles = {leaf.title: leaf.name for leaf in leaves(table.template.cols)}
    known = set(keys)
    return lambda name: name if name in known else titles.get(name, name)


def filled_chunks(filling: Filling, tables: Sequence[TableRows], notes: Notes | None = None) -> Iterator[Chunk]:
    """The bytes of the filled workbook. The `count` of each table must be the number of its rows."""
    names = list_names([each.table.title for each in tables])
    book = FilledBook(filling, {name: tables[names[name]].count for name in filling.template.lists})
    book.check_rows()
    notes = notes or Notes()

    def rows(sheet: TemplateSheet, block: Block) -> Iterator[bytes]:
        source = tables[names[block.name]]
        writer, at = book.writer(sheet, block, source.table, source.keys), 0
        for rows in RowBlocks.of(source.rows):
            yield writer.xml(rows, at)
            at += len(rows)
        if not at:
            yield writer.empty()
        notes.cut_cells += writer.cut

    def sheet_chunks(sheet: TemplateSheet) -> Iterator[bytes]:
        for piece in book.sheet(sheet):
            if isinstance(piece, Block):
                yield from rows(sheet, piece)
            else:
                yield piece

    def entries() -> Iterator[Entry]:
        for name, sheet in book.parts():
            yield name, sheet_chunks(sheet) if sheet else [book.part(name)]

    return zip_stream(entries())


# --- book


class FilledBook:
    """The parts of a filled workbook, for lists of known lengths; the rows of the lists are written elsewhere."""

    def __init__(self, filling: Filling, counts: Mapping[str, int]) -> None:
        self._template, self._values, self._counts = filling.template, filling.values, counts
        self._package = self._template.package
        self._maps = {sheet.name.casefold(): RowMap(sheet.blocks, counts) for sheet in self._template.sheets}
        self._formulas = Formulas(self._maps)
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
        """The names of the parts in order; of a worksheet, also the sheet."""
        for name in sorted(self._package.names, key=lambda name: name != "[Content_Types].xml"):
            if not name.endswith("/calcChain.xml"):
                yield name, self._sheets.get(name)

    def part(self, name: str) -> bytes:
        """The content of a part that is no worksheet."""
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
        if sheet is None or not self.rows_of(sheet).moves:
            return package.read(name)
        if kind in _MOVED_PARTS:
            return _MOVED_PARTS[kind](package.text(name), self.rows_of(sheet), self._formulas, sheet.name).encode()
        return package.read(name)

    def _parts_of_sheets(self) -> dict[str, tuple[str, TemplateSheet]]:
        """The kind and the sheet of parts that belong to one sheet."""
        return {
            part: (kind, sheet)
            for sheet in self._template.sheets
            for kind, part in self._package.rels(sheet.part).values()
        }

    def _workbook(self, text: str) -> str:
        def renamed(match: re.Match[str]) -> str:
            formula = self._formulas.text(unescape(match[2] or ""), "", whole=True)
            return f"<definedName{match[1]}>{escaped_formula(formula)}</definedName>"

        text = element("definedName").sub(renamed, text)
        # The cached results of formulas are gone.
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
        formula = self._formulas.text(unescape(match[2] or ""), sheet, at=at, whole=whole)
        return match[0].replace(f">{match[2]}<", f">{escaped_formula(formula)}<") if match[2] else match[0]

    # --- sheets

    def sheet(self, sheet: TemplateSheet) -> Iterator[bytes | Block]:
        """The XML of a sheet; a Block where its rows have to be put."""
        rows = self.rows_of(sheet)
        yield (_moved_head(sheet.head, rows) + "<sheetData>").encode()
        held, done = list[str](), 0
        for row in sheet.rows:
            block = rows.block_of(row.number)
            if block is None:
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
        formula = self._formulas.text(unescape(match[2] or ""), sheet.name)
        return f"<f{attribute_text(given)}>{escaped_formula(formula)}</f>"

    def _marked(self, cell: TemplateCell) -> str:
        """A cell with values only."""
        marked, writer = cell.marked, self._column(cell, "")
        assert marked is not None
        if mark := marked.only:
            return writer.cell(self._values.get(mark.name))
        parts = [(font, part if isinstance(part, str) else self._text(part)) for font, part in marked.parts]
        return _rich_cell(parts, cell.style)

    def _text(self, mark: Mark) -> str:
        return value_text(self._values.get(mark.name))

    def _column(self, cell: TemplateCell, key: str, kind: str | None = None) -> ColumnWriter:
        kinds = self._template.kinds
        found = kinds[cell.style] if cell.style < len(kinds) else None
        return ColumnWriter(Column(key, cell.style, kind or found))

    def _tail(self, sheet: TemplateSheet, rows: RowMap) -> Iterator[bytes]:
        """What follows the rows. Merged cells of repeated rows are as many as these: they come in parts."""
        before, merges, after = sheet.tail, "", ""
        if match := element("mergeCells").search(sheet.tail):
            before, after = sheet.tail[: match.start()], sheet.tail[match.end() :]
            merges = match[0]
        if not rows.moves:
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
            for cell in row.cells if row.cells is not None else _cells_of(row.xml):
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
        """The `<f>` element of a formula in a repeated row."""
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
        writer.put_column(column, at, self._column(cell, "", "string"), MarkedText(parts))


def _renumbered(xml: str, number: int) -> str:
    """A row without placeholders and formulas at another place."""
    cells = _cells_of(xml)
    given = {name: value for name, value in attributes(_ROW_START.match(xml)[1]).items() if name != "r"}  # type: ignore[index]
    texts = [
        f'<c r="{letters(cell.column)}{number}"{attribute_text(cell.attributes)}'
        + (f">{cell.content}</c>" if cell.content else "/>")
        for cell in cells
    ]
    return f'<row r="{number}"{attribute_text(given)}>{"".join(texts)}</row>'


_ROW_START = re.compile(rf"<row({ATTRIBUTES})")


def _cells_of(xml: str) -> list[TemplateCell]:
    cells, column = list[TemplateCell](), 0
    for match in element("c").finditer(xml):
        given = attributes(match[1])
        at = place(given.pop("r", ""))
        column = at[1] if at else column + 1
        cells.append(TemplateCell(column, given, match[2] or ""))
    return cells


def _blank(at: str, given: dict[str, str]) -> str:
    return f"<c {at}{attribute_text(given)}/>"


def _rich_cell(parts: Sequence[tuple[str, str]], style: int) -> str:
    if any(font for font, _ in parts):
        runs = "".join(f"<r>{font}{text_element(text)}</r>" for font, text in parts if text)
        return f'" s="{style}" t="inlineStr"><is>{runs or "<t/>"}</is></c>'
    return text_cell("".join(text for _, text in parts), style)


# --- repeated rows

_Slot = str | int | tuple[ColumnWriter, MarkedText | None]


class BlockWriter:
    """Writes the repetitions of the rows of a block, many at a time.

    A repetition is a fixed sequence of slots: markup, row numbers, and cells of a column. All repetitions of a slot are
    laid into one list, which is joined once.
    """

    def __init__(self, height: int) -> None:
        self._height = height
        # Markup, or the row number in the first repetition, or a column.
        self._slots: list[_Slot] = []
        self._empty: list[str] = []

    @property
    def cut(self) -> int:
        return sum(slot[0].cut for slot in self._slots if isinstance(slot, tuple))

    def begin_row(self, number: int, given: str) -> None:
        self._add('<row r="', number, f'"{given}>')
        self._empty.append(f'<row r="{number}"{given}>')

    def end_row(self) -> None:
        self._add("</row>")
        self._empty.append("</row>")

    def put(self, column: str, number: int, pieces: Sequence[Piece], style: int = 0) -> None:
        """A cell that is the same in all repetitions but for row numbers; `pieces` follow its `r`."""
        self._add(f'<c r="{column}', number, '"')
        self._add(*(piece if isinstance(piece, str) else piece.first for piece in pieces))
        self._empty.append(f'<c r="{column}{number}" s="{style}"/>')

    def put_column(self, column: str, number: int, writer: ColumnWriter, text: MarkedText | None = None) -> None:
        """A cell of a column; with `text`, the text that is put together from several."""
        self._add(f'<c r="{column}', number)
        self._slots.append((writer, text))
        self._empty.append(f'<c r="{column}{number}{writer.blank}')

    def _add(self, *slots: str | int) -> None:
        for slot in slots:
            if isinstance(slot, str) and self._slots and isinstance(self._slots[-1], str):
                self._slots[-1] += wire(slot)
            else:
                self._slots.append(wire(slot) if isinstance(slot, str) else slot)

    def empty(self) -> bytes:
        """The rows without content, for a list that has none."""
        return "".join(self._empty).encode()

    def xml(self, rows: Sequence[Row], at: int) -> bytes:
        """The XML of these rows, of which the first is number `at` of the list."""
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
        return writer.cells(column_of(rows, writer.key))
    columns = [
        [part] * len(rows) if isinstance(part, str) else list(map(value_text, column_of(rows, part.name)))
        for _, part in text.parts
    ]
    if not text.is_rich:
        return writer.cells(list(map("".join, zip(*columns, strict=True))))
    fonts = [font for font, _ in text.parts]
    style = int(re.search(r"\d+", writer.blank)[0])  # type: ignore[index]
    made = (_rich_cell(list(zip(fonts, texts, strict=True)), style) for texts in zip(*columns, strict=True))
    return Cells("", list(map(wire, made)), "", [])


# --- what refers to rows that move


def _retagged(text: str, names: str, change: Callable[[dict[str, str]], object]) -> str:
    """The text with changed attributes of the elements `names`, separated by `|`."""

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
    for name in ("x14:conditionalFormatting", "x14:dataValidation", "x14:sparkline"):
        text = element(name).sub(lambda match: _moved_extension(match, rows, formulas, sheet), text)

    def broken(given: dict[str, str]) -> None:
        given["id"] = str(rows.end(int(given["id"]))) if given.get("id", "").isdigit() else given.get("id", "")

    return element("rowBreaks").sub(lambda match: _retagged(match[0], "brk", broken), text)


def _moved_rule(inner: str, rows: RowMap, formulas: Formulas, sheet: str, match: re.Match[str]) -> str:
    """A conditional format or a validation; its formulas are relative to the first of its cells."""
    given = attributes(match[1])
    areas = given.get("sqref", "")
    given["sqref"] = moved_areas(areas, rows)
    first = rows_of(areas.split()[0]) if areas.split() else None
    name = match[0][1 : match[0].index(" ")]
    if match[2] is None:
        return f"<{name}{attribute_text(given)}/>"
    content = _with_formulas(match[2], inner, formulas, sheet, first[0] if first else None)
    return f"<{name}{attribute_text(given)}>{content}</{name}>"


def _moved_extension(match: re.Match[str], rows: RowMap, formulas: Formulas, sheet: str) -> str:
    areas = re.search(r"<xm:sqref>([^<]*)</xm:sqref>", match[0])
    first = rows_of(areas[1].split()[0]) if areas and areas[1].split() else None
    text = _with_formulas(match[0], "xm:f", formulas, sheet, first[0] if first else None)
    return re.sub(
        r"<xm:sqref>([^<]*)</xm:sqref>", lambda found: f"<xm:sqref>{moved_areas(found[1], rows)}</xm:sqref>", text
    )


def _with_formulas(text: str, name: str, formulas: Formulas, sheet: str, at: int | None) -> str:
    def moved(match: re.Match[str]) -> str:
        formula = formulas.text(unescape(match[3]), sheet, at=at)
        return f"<{match[1]}{match[2]}>{escaped_formula(formula)}</{match[1]}>"

    return re.sub(rf"<({name})({ATTRIBUTES})\s*>(.*?)</\1\s*>", moved, text, flags=re.DOTALL)


_MERGES_IN_PART = 10_000


def _merges(sheet: TemplateSheet, rows: RowMap) -> Iterator[bytes]:
    """Merged cells; those within repeated rows are repeated with them."""
    made = list[str]()
    for merge in sheet.merges:
        area = rows_of(merge)
        block = rows.block_of(area[0]) if area else None
        if area is None or block is None or not block.has(area[1]):
            made.append(f'<mergeCell ref="{moved_area(merge, rows)}"/>')
            continue
        left, right = (re.sub(r"[$\d]", "", corner) for corner in merge.split(":"))
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
    return _with_formulas(text, "calculatedColumnFormula", formulas, sheet, area[0] if area else None)


def _moved_comments(text: str, rows: RowMap, _formulas: Formulas, _sheet: str) -> str:
    return _with_cells(text, "comment|threadedComment", ["ref"], rows)


def _moved_pivot(text: str, rows: RowMap, _formulas: Formulas, _sheet: str) -> str:
    return _with_areas(text, "location", "ref", rows)


def _moved_drawing(text: str, rows: RowMap, _formulas: Formulas, _sheet: str) -> str:
    """Images and charts move with the row of their upper edge and keep their size."""

    def moved(match: re.Match[str]) -> str:
        upper = element("from").search(match[0])
        top = re.search(r"<row>(\d+)</row>", upper[0]) if upper else None
        shift = rows.start(int(top[1]) + 1) - int(top[1]) - 1 if top else 0

        def shifted(edge: re.Match[str]) -> str:
            return re.sub(r"<row>(\d+)</row>", lambda row: f"<row>{int(row[1]) + shift}</row>", edge[0])

        return element("to").sub(shifted, element("from").sub(shifted, match[0]))

    for name in ("twoCellAnchor", "oneCellAnchor"):
        text = element(name).sub(moved, text)
    return text


def _moved_notes(text: str, rows: RowMap, _formulas: Formulas, _sheet: str) -> str:
    """The boxes of comments."""

    def moved(shape: str) -> str:
        row = re.search(r"(<\w+:Row>)\s*(\d+)\s*<", shape)
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
    """The rows are the third and the seventh of eight numbers."""
    numbers = [each.strip() for each in anchor.split(",")]
    if len(numbers) != 8:
        return anchor
    return ", ".join(str(int(each) + shift) if index in (2, 6) else each for index, each in enumerate(numbers))


_MOVED_PARTS: dict[str, Callable[[str, RowMap, Formulas, str], str]] = {
    "table": _moved_table,
    "comments": _moved_comments,
    "threadedComment": _moved_comments,
    "pivotTable": _moved_pivot,
    "drawing": _moved_drawing,
    "vmlDrawing": _moved_notes,
}
