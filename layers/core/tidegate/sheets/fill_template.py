"""Templates: reads and checks a workbook that somebody designed, and finds its placeholders."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import unescape
from itertools import groupby
from pathlib import PurePosixPath
from posixpath import normpath
from pyexpat import ExpatError, ParserCreate
from typing import Any

from defusedxml.ElementTree import ParseError, fromstring

from tidegate.errors import BadTable
from tidegate.sheets.fill_refs import Block, copied, row_and_column, rows_of
from tidegate.sheets.values import clean
from tidegate.sheets.xlsx_cells import MAC_DATETIME

# --- package
# The parts of the file. Unknown parts stay as they are. Refused are only parts that would run or fetch something on
# the computer of a reader: macros, controls, links to other workbooks, connections.

MAX_BYTES = 10_000_000
# The most bytes that all parts have together when unpacked; limits the memory and time that a template takes.
MAX_UNPACKED = 64_000_000
_MAX_PARTS = 2000
_OLD_FORMAT = b"\xd0\xcf\x11\xe0"
_MACROS = "macros: save it as .xlsx"
_CONTROLS = "ActiveX controls: remove them"
_OBJECTS = "embedded objects: remove them"
_BOOKS = "links to other workbooks: break them (Data, Edit Links)"
_DATA_FROM = "data connections: remove them (Data, Queries & Connections)"
# By the beginning of a part's name, in lower case.
_FORBIDDEN = {
    "xl/vbaproject": _MACROS,
    "xl/macrosheets/": _MACROS,
    "xl/activex/": _CONTROLS,
    "xl/embeddings/": _OBJECTS,
    "xl/externallinks/": _BOOKS,
    "xl/connections": _DATA_FROM,
    "xl/querytables/": _DATA_FROM,
}
# By the kind of a relation: programs find parts by it, whatever their names are.
_FORBIDDEN_KINDS = {
    "vbaProject": _MACROS,
    "xlMacrosheet": _MACROS,
    "xlIntlMacrosheet": _MACROS,
    "control": _CONTROLS,
    "activeXControlBinary": _CONTROLS,
    "oleObject": _OBJECTS,
    "package": _OBJECTS,
    "externalLink": _BOOKS,
    "connections": _DATA_FROM,
    "queryTable": _DATA_FROM,
}
_MAIN = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
# An .xltx is filled like an .xlsx.
_TEMPLATE_MAIN = "application/vnd.openxmlformats-officedocument.spreadsheetml.template.main+xml"
_CALC_CHAIN = "calcChain.xml"


@contextmanager
def readable(what: str = "the template") -> Iterator[None]:
    """Raises BadTable in place of errors from values that no workbook has, such as `r="x"` or an unknown encoding.

    XML with such values is valid, so the earlier checks do not refuse it.
    """
    try:
        yield
    except (ValueError, LookupError, OverflowError, ParseError) as error:
        raise BadTable(f"{what[:200]} cannot be read ({str(error)[:100]}): open and save it in Excel") from error


class Package:
    """The parts of a workbook, read when they are needed."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise BadTable(f"the template has {len(data)} bytes, but may have {MAX_BYTES}: make its images smaller")
        if data.startswith(_OLD_FORMAT):
            raise BadTable("the template is encrypted or an old .xls: save it as .xlsx without a password")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise BadTable(f"the template is not an .xlsx file: {error}") from error
        infos = [info for info in self._zip.infolist() if not info.is_dir()]
        self.names = [info.filename for info in infos]
        if len(infos) > _MAX_PARTS or len(set(self.names)) < len(infos):
            raise BadTable(f"the template has more than {_MAX_PARTS} parts, or one of them twice")
        if any(info.flag_bits & 1 for info in infos):
            raise BadTable("the template is encrypted: save it without a password")
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
            raise BadTable("the template is compressed in a way that .xlsx files are not")
        # `zipfile` reads no more of a part than its header says.
        if (unpacked := sum(info.file_size for info in infos)) > MAX_UNPACKED:
            raise BadTable(f"the template has {unpacked} bytes when unpacked, but may have {MAX_UNPACKED}")
        for name in self.names:
            for start, what in _FORBIDDEN.items():
                if name.lower().startswith(start):
                    raise BadTable(f"the template has {what}")
        for name in self.names:
            if name.lower().endswith((".xml", ".rels", ".vml")):
                self._check_xml(name)
        self._check_types()

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except KeyError as error:
            raise BadTable(f"the template has no part {name[:200]}: open and save it in Excel") from error
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise BadTable(f"the part {name[:200]} of the template cannot be read: {error}") from error

    def text(self, name: str) -> str:
        """Returns the XML of a part, without prefixes at the elements of its main namespace."""
        data = self.read(name)
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            raise BadTable(f"the part {name[:200]} of the template is not UTF-8: open and save it in Excel") from error
        if encoding == "utf-16":
            text = re.sub(r"""^(<\?xml[^>]*encoding=)["'][^"']*["']""", r'\1"UTF-8"', text)
        if "<!" in text:
            text = _SECTION.sub(_plain_section, text)
        root = _ROOT.search(text)
        if root and root[1]:
            text = re.sub(rf"(</?){root[1]}", r"\1", text)
            text = text.replace(f"xmlns:{root[1][:-1]}=", "xmlns=", 1)
        return text

    def rels(self, part: str) -> dict[str, tuple[str, str]]:
        """Returns (type, part) of each relation of a part, by the relation's id.

        Relations to outside the file are left out.
        """
        path = PurePosixPath(part)
        name = f"{path.parent}/_rels/{path.name}.rels" if part else "_rels/.rels"
        if name not in self.names:
            return {}
        found = {}
        for each in fromstring(self.read(name)):
            kind, target = each.get("Type", "").rsplit("/", 1)[-1], each.get("Target", "")
            if each.get("TargetMode") == "External":
                continue
            base = "" if target.startswith("/") else str(path.parent)
            found[each.get("Id", "")] = kind, normpath(f"{base}/{target}").lstrip("/")
        return found

    def _check_xml(self, name: str) -> None:
        """Raises BadTable for document types, and for relations to parts that would run or be fetched.

        Parses like defusedxml, but builds no tree, because the part may be large.
        """

        def refuse(*_: Any) -> None:
            raise BadTable(f"the part {name[:200]} of the template declares a document type, which no workbook needs")

        data = self.read(name)
        if name.endswith(".vml"):
            # Excel writes some .vml parts that are not valid XML.
            if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
                refuse()
            return
        parser = ParserCreate()
        parser.StartDoctypeDeclHandler = refuse
        if name.lower().endswith(".rels"):
            parser.StartElementHandler = _check_relation
        try:
            parser.Parse(data, True)
        except ExpatError as error:
            raise BadTable(f"the part {name[:200]} of the template is not valid XML: {error}") from error

    def _check_types(self) -> None:
        types = self.read("[Content_Types].xml").decode("utf-8-sig", "replace")
        if "macroEnabled" in types:
            raise BadTable("the template has macros: save it as .xlsx")
        if _MAIN not in types and _TEMPLATE_MAIN not in types:
            raise BadTable("the template is not an .xlsx file: open it in Excel and save it as .xlsx")

    def content_types(self) -> str:
        types = self.text("[Content_Types].xml").replace(_TEMPLATE_MAIN, _MAIN)
        return without(types, "Override", _CALC_CHAIN)

    @cached_property
    def main(self) -> str:
        found = [part for kind, part in self.rels("").values() if kind == "officeDocument"]
        if not found:
            raise BadTable("the template has no workbook: open it in Excel and save it as .xlsx")
        return found[0]


def _check_relation(_: str, given: dict[str, str]) -> None:
    kind = given.get("Type", "").rsplit("/", 1)[-1]
    if kind in _FORBIDDEN_KINDS:
        raise BadTable(f"the template has {_FORBIDDEN_KINDS[kind]}")
    if given.get("TargetMode") == "External" and kind != "hyperlink":
        raise BadTable(f"the template has something of this kind outside itself: {kind[:100]}; remove it")


# One pattern for all of these: each may contain the start of another one, which is then text.
_SECTION = re.compile(r"<!--.*?-->|<!\[CDATA\[(.*?)\]\]>|<\?.*?\?>", re.DOTALL)
_ROOT = re.compile(r"<(?![?!])([\w.-]+:)?[\w.-]+")


# --- xml
# Elements are found by patterns in text that was checked to be valid XML. So unchanged parts keep their bytes, and
# prefixes and unknown extensions stay declared, which XML trees of Python's library do not guarantee. In valid XML each
# start tag has an end tag, so a pattern that reads up to the end tag takes linear time; in other text it would not.

ATTRIBUTES = r"""(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*"""
_ATTRIBUTE = re.compile(r"""\s+([\w:.-]+)\s*=\s*("[^"]*"|'[^']*')""")


def element(name: str) -> re.Pattern[str]:
    """Returns a pattern for elements of this name.

    Groups: the attributes; the content, or None for an element like `<x/>`.
    """
    return re.compile(rf"<{name}({ATTRIBUTES})\s*(?:/>|>(.*?)</{name}\s*>)", re.DOTALL)


def attributes(text: str) -> dict[str, str]:
    return {name: value[1:-1].replace('"', "&quot;") for name, value in _ATTRIBUTE.findall(text)}


def attribute_text(given: dict[str, str]) -> str:
    return "".join(f' {name}="{value}"' for name, value in given.items())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain_section(match: re.Match[str]) -> str:
    """Returns an empty text for a comment, plain text for a CDATA section, and a processing instruction unchanged."""
    if match[0].startswith("<?"):
        return match[0]
    return "" if match[1] is None else _escaped(match[1])


def without(text: str, name: str, part: str) -> str:
    """Returns the text without the `name` elements that have an attribute whose value ends with `part`."""
    return element(name).sub(lambda match: "" if f'{part}"' in match[1] or f"{part}'" in match[1] else match[0], text)


escaped_formula = _escaped
ROW, CELL, FORMULA = element("row"), element("c"), element("f")
_STRING, _RUN, _TEXT, _RUN_STYLE, _PHONETIC = map(element, ("si", "r", "t", "rPr", "rPh"))
_MERGE = element("mergeCell")
_DATA = re.compile(rf"<sheetData{ATTRIBUTES}\s*(?:/>|>(.*)</sheetData\s*>)", re.DOTALL)


# --- placeholders

# A backslash before a brace makes it a character of the text. Braces around anything else, as in {"a": 1}, are text.
_MAX_CELL = 32_767
_MARK = re.compile(r"""\\([{}])|\{([^{}"':;,=\\\n]{1,200})\}""")
_ESCAPED_CHAR = re.compile("_x([0-9A-Fa-f]{4})_")


@dataclass(frozen=True, slots=True)
class Mark:
    """A placeholder: for a column of a list, or for a value if `list` is None."""

    list: str | None
    name: str

    @classmethod
    def from_text(cls, text: str) -> Mark | None:
        before, dot, after = (part.strip() for part in text.partition("."))
        if dot:
            return cls(before, after) if after else None
        return cls(None, before) if before else None


@dataclass(frozen=True, slots=True)
class MarkedText:
    """The text of a cell in parts: (XML of the part's font or an empty text, literal or placeholder)."""

    parts: tuple[tuple[str, str | Mark], ...]

    @property
    def only(self) -> Mark | None:
        """The placeholder, if the text consists of a single placeholder; else None."""
        mark = self.parts[0][1] if len(self.parts) == 1 else None
        return mark if isinstance(mark, Mark) else None

    @property
    def marks(self) -> list[Mark]:
        return [part for _, part in self.parts if isinstance(part, Mark)]

    @property
    def is_rich(self) -> bool:
        return any(font for font, _ in self.parts)


def marked_text(xml: str) -> MarkedText | None:
    """Returns the text of an `<si>` or `<is>` element. None if it has neither placeholders nor escaped braces.

    Excel may split a placeholder into several runs when part of it was edited. The placeholder gets the font of its
    first run.
    """
    if "{" not in xml:
        return None
    runs = [(_font(match[2] or ""), _plain_text(match[2] or "")) for match in _RUN.finditer(_PHONETIC.sub("", xml))]
    runs = runs or [("", _plain_text(xml))]
    text = "".join(run for _, run in runs)
    if len(text) > _MAX_CELL:
        raise BadTable(f"a cell of the template has {len(text)} characters, but a cell can have {_MAX_CELL}")
    fonts = [font for font, run in runs for _ in run]
    parts, at = list[tuple[str, str | Mark]](), 0

    def literal(start: int, end: int) -> None:
        for font, indexes in groupby(range(start, end), key=fonts.__getitem__):
            run = list(indexes)
            piece, before = text[run[0] : run[-1] + 1], parts[-1] if parts else None
            if before and before[0] == font and isinstance(before[1], str):
                parts[-1] = font, before[1] + piece
            else:
                parts.append((font, piece))

    found = False
    for match in _MARK.finditer(text):
        mark = None if match[1] else Mark.from_text(match[2])
        if mark is None and not match[1]:
            continue
        literal(at, match.start())
        at, found = match.end(), True
        if mark:
            parts.append((fonts[match.start()], mark))
        else:
            literal(at - 1, at)
    literal(at, len(text))
    return MarkedText(tuple(parts)) if found else None


def _plain_text(xml: str) -> str:
    text = unescape("".join(match[2] or "" for match in _TEXT.finditer(xml)))
    return _ESCAPED_CHAR.sub(lambda match: chr(int(match[1], 16)), text)


def _font(xml: str) -> str:
    match = _RUN_STYLE.search(xml)
    return match[0] if match and match[2] else ""


# --- sheets


@dataclass(slots=True)
class TemplateCell:
    column: int
    # Without `r`.
    attributes: dict[str, str]
    content: str
    marked: MarkedText | None = None

    @property
    def style(self) -> int:
        given = self.attributes.get("s", "")
        return int(given) if re.fullmatch("[0-9]{1,9}", given) else 0


def cells_of(xml: str) -> Iterator[TemplateCell]:
    """Yields the cells of a row. A cell without a position follows the cell before it."""
    column = 0
    for match in CELL.finditer(xml):
        given = attributes(match[1])
        at = row_and_column(given.pop("r", ""))
        column = at[1] if at else column + 1
        yield TemplateCell(column, given, match[2] or "")


@dataclass(slots=True)
class TemplateRow:
    number: int
    # Without `r`.
    attributes: dict[str, str]
    xml: str
    # The cells, if the row has placeholders or formulas.
    cells: list[TemplateCell] | None = None

    def all_cells(self) -> Iterable[TemplateCell]:
        return cells_of(self.xml) if self.cells is None else self.cells


@dataclass(slots=True)
class TemplateSheet:
    name: str
    part: str
    # The XML before and after the rows.
    head: str
    tail: str
    rows: list[TemplateRow]
    blocks: list[Block] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)

    @property
    def marks(self) -> Iterator[tuple[int, TemplateCell]]:
        for row in self.rows:
            for cell in row.cells or ():
                if cell.marked:
                    yield row.number, cell

    @property
    def last_row(self) -> int:
        """The last row with content or merged cells.

        Empty rows do not count, because some programs write them down to the last row of a sheet.
        """
        ends = [area[1] for merge in self.merges if (area := rows_of(merge))]
        rows = [row.number for row in self.rows if row.cells is not None or "<v" in row.xml or "<is" in row.xml]
        return max([1, *rows[-1:], *ends])


@dataclass(frozen=True, slots=True)
class ListMarks:
    """The rows that are repeated for a list, and the columns that its placeholders name."""

    name: str
    sheet: str
    row: int
    last_row: int
    columns: tuple[str, ...]


# How much of a workbook a preview has: sheets, rows, columns, characters of a cell.
_SKETCH_SHEETS, _SKETCH_ROWS, _SKETCH_COLUMNS, _SKETCH_TEXT = 5, 40, 26, 200


@dataclass(frozen=True, slots=True)
class SketchCell:
    """A cell for a preview: its text with placeholders, or `=` and its formula, and how it looks."""

    row: int
    column: int
    text: str
    bold: bool | None = None
    align: str | None = None
    color: str | None = None
    bg_color: str | None = None


@dataclass(frozen=True, slots=True)
class Sketch:
    """The first rows of a sheet, for a preview."""

    name: str
    cells: tuple[SketchCell, ...]
    merges: tuple[str, ...]


class FillTemplate:
    """A workbook with placeholders: `{name}` for a value, `{.name}` or `{list.name}` for a column of a list.

    A row with placeholders of a list is repeated for each row of the list. Neighbouring rows with placeholders of the
    same list are repeated together.
    """

    @readable()
    def __init__(self, data: bytes) -> None:
        """Raises BadTable if the data are not a workbook that can be filled."""
        self.package = Package(data)
        self._strings = self._marked_strings()
        self.sheets = [self._sheet(name, part) for name, part in self._worksheets()]
        places: dict[str, tuple[TemplateSheet, Block]] = {}
        for sheet in self.sheets:
            self._check_tables(sheet)
            for block in sheet.blocks:
                if block.name in places:
                    first, earlier = places[block.name]
                    raise BadTable(
                        f"the list {_named(block.name)} is in row {earlier.first} of {first.name} and in row "
                        f"{block.first} of {sheet.name}: a list can be repeated at one place only"
                    )
                places[block.name] = sheet, block
        self._places = places

    @cached_property
    def lists(self) -> dict[str, ListMarks]:
        """The lists by name, in the order of the sheets. The list of `{.name}` has an empty name."""
        columns: dict[str, dict[str, None]] = {name: {} for name in self._places}
        for sheet in self.sheets:
            for _, cell in sheet.marks:
                for mark in cell.marked.marks if cell.marked else ():
                    if mark.list is not None:
                        columns[mark.list][mark.name] = None
        return {
            name: ListMarks(name, sheet.name, block.first, block.last, tuple(columns[name]))
            for name, (sheet, block) in self._places.items()
        }

    @cached_property
    def values(self) -> list[str]:
        """The names of the placeholders for values, in the order of their first occurrence."""
        found = {
            mark.name: None
            for sheet in self.sheets
            for _, cell in sheet.marks
            for mark in (cell.marked.marks if cell.marked else ())
            if mark.list is None
        }
        return list(found)

    @cached_property
    @readable()
    def kinds(self) -> list[str | None]:
        """For each style: the type of value that its number format shows."""
        root = self._styles
        formats = {each.get("numFmtId"): each.get("formatCode", "") for each in _all(root, "numFmt")}
        found = next(iter(_all(root, "cellXfs")), ())
        kinds = [_kind(each.get("numFmtId", "0"), formats) for each in found]
        properties = _all(fromstring(self.package.read(self.package.main)), "workbookPr")
        is_mac = any(each.get("date1904") in ("1", "true") for each in properties)
        return [MAC_DATETIME if is_mac and kind == "datetime" else kind for kind in kinds]

    @cached_property
    def _styles(self) -> Any:
        """The root element of the styles; an empty one if the workbook has none."""
        styles = [part for kind, part in self.package.rels(self.package.main).values() if kind == "styles"]
        if not styles or styles[0] not in self.package.names:
            return fromstring("<styleSheet/>")
        return fromstring(self.package.read(styles[0]))

    @cached_property
    @readable()
    def sketches(self) -> list[Sketch]:
        """The first rows of the first sheets, for a preview."""
        looks, found = self._looks(), list[tuple[TemplateSheet, list[tuple[int, TemplateCell]]]]()
        for sheet in self.sheets[:_SKETCH_SHEETS]:
            rows = [row for row in sheet.rows if row.number <= _SKETCH_ROWS]
            cells = [
                (row.number, cell)
                for row in rows
                for cell in row.cells or self._cells(_content(row), row.number, SharedFormulas())
                if cell.column <= _SKETCH_COLUMNS
            ]
            found.append((sheet, cells))
        shared = {_number(cell) for _, cells in found for _, cell in cells if cell.attributes.get("t") == "s"}
        texts = self._string_texts(shared)
        return [
            Sketch(
                sheet.name,
                tuple(
                    SketchCell(row, cell.column, _cell_text(cell, texts)[:_SKETCH_TEXT], **looks.get(cell.style, {}))
                    for row, cell in cells
                ),
                tuple(merge for merge in sheet.merges if _is_sketched(merge)),
            )
            for sheet, cells in found
        ]

    def _looks(self) -> dict[int, dict[str, Any]]:
        """Returns how each style looks in a preview, by the style's number.

        Colours of the workbook's theme are left out.
        """
        root = self._styles
        fonts, fills = ([list(each) for each in next(iter(_all(root, name)), ())] for name in ("fonts", "fills"))
        looks = dict[int, dict[str, Any]]()
        for number, style in enumerate(next(iter(_all(root, "cellXfs")), ())):
            font, fill = (_nth(of, style.get(name)) for of, name in ((fonts, "fontId"), (fills, "fillId")))
            by_tag = {each.tag.rpartition("}")[2]: each for each in (*font, *fill, *style)}
            ground = next(iter(_all(by_tag["patternFill"], "fgColor")), None) if "patternFill" in by_tag else None
            bold, aligned = by_tag.get("b"), by_tag.get("alignment")
            look = {
                "bold": (bold is not None and bold.get("val", "1") not in ("0", "false")) or None,
                "align": aligned.get("horizontal") if aligned is not None else None,
                "color": _rgb(by_tag.get("color")),
                "bg_color": _rgb(ground),
            }
            looks[number] = look | {"align": look["align"] if look["align"] in ("left", "center", "right") else None}
        return looks

    def _string_texts(self, wanted: set[int]) -> dict[int, str]:
        parts = [part for kind, part in self.package.rels(self.package.main).values() if kind == "sharedStrings"]
        if not wanted or not parts or parts[0] not in self.package.names:
            return {}
        strings = enumerate(_STRING.finditer(self.package.text(parts[0])))
        return {n: _plain_text(_PHONETIC.sub("", match[2] or "")) for n, match in strings if n in wanted}

    # --- reading

    def _worksheets(self) -> Iterator[tuple[str, str]]:
        rels, found = self.package.rels(self.package.main), False
        for each in _all(fromstring(self.package.read(self.package.main)), "sheet"):
            relation = next((value for name, value in each.attrib.items() if name.endswith("}id")), "")
            kind, part = rels.get(relation, ("", ""))
            found = True
            if kind == "worksheet":
                yield each.get("name", ""), part
        if not found:
            raise BadTable("the template has no sheet")

    def _marked_strings(self) -> dict[int, MarkedText]:
        parts = [part for kind, part in self.package.rels(self.package.main).values() if kind == "sharedStrings"]
        if not parts or parts[0] not in self.package.names:
            return {}
        strings = _STRING.finditer(self.package.text(parts[0]))
        found = {index: marked_text(match[2] or "") for index, match in enumerate(strings)}
        return {index: marked for index, marked in found.items() if marked}

    def _sheet(self, name: str, part: str) -> TemplateSheet:
        text = self.package.text(part)
        data = _DATA.search(text)
        if not data:
            raise BadTable(f"the sheet {name[:100]} of the template has no cells: open and save it in Excel")
        rows = self._rows(data[1] or "")
        sheet = TemplateSheet(name, part, text[: data.start()], text[data.end() :], rows)
        sheet.merges = [attributes(match[1])["ref"] for match in _MERGE.finditer(sheet.tail)]
        sheet.blocks = _blocks(sheet)
        return sheet

    def _check_tables(self, sheet: TemplateSheet) -> None:
        """Raises BadTable for placeholders in the head row of an Excel table.

        The texts of that row must be the names of the table's columns.
        """
        tables = [part for kind, part in self.package.rels(sheet.part).values() if kind == "table"]
        columns: dict[int, list[int]] = {}
        for row, cell in sheet.marks if tables else ():
            columns.setdefault(row, []).append(cell.column)
        for part in tables:
            if part not in self.package.names:
                continue
            given = fromstring(self.package.read(part))
            corners = [row_and_column(each) for each in given.get("ref", "").split(":")]
            first, last = corners[0], corners[-1]
            if first is None or last is None or given.get("headerRowCount") == "0":
                continue
            if any(first[1] <= column <= last[1] for column in columns.get(first[0], ())):
                raise BadTable(
                    f"row {first[0]} of {sheet.name} is the head of the table {given.get('displayName', '')[:100]}, "
                    "which can have no placeholders: put them elsewhere, or make it a range (Table Design, "
                    "Convert to Range)"
                )

    def _rows(self, xml: str) -> list[TemplateRow]:
        rows, number, shared = list[TemplateRow](), 0, SharedFormulas()
        for match in ROW.finditer(xml):
            given = attributes(match[1])
            number = int(given.pop("r", number + 1))
            row = TemplateRow(number, given, match[0])
            if match[2] and ("<f" in match[2] or "{" in match[2] or self._has_marked(match[2])):
                row.cells = list(self._cells(match[2], number, shared))
            rows.append(row)
        return rows

    def _has_marked(self, xml: str) -> bool:
        return bool(self._strings) and any(int(index) in self._strings for index in _SHARED.findall(xml))

    def _cells(self, xml: str, row: int, shared: SharedFormulas) -> Iterator[TemplateCell]:
        for cell in cells_of(xml):
            given, content = cell.attributes, cell.content
            if "<f" in content:
                cell.content = shared.own(content, row, cell.column)
            elif given.get("t") == "s":
                index = re.search(r"<v[^>]*>\s*(\d+)\s*</v>", content)
                cell.marked = self._strings.get(int(index[1])) if index else None
            elif given.get("t") == "inlineStr":
                cell.marked = marked_text(content)
            elif given.get("t") == "str":
                cell.marked = marked_text(content.replace("<v", "<t").replace("</v", "</t"))
            yield cell


_SHARED = re.compile(r"<v>(\d+)</v>")
_VALUE = element("v")
_RGB = re.compile("[0-9A-Fa-f]{6}")


def _is_sketched(merge: str) -> bool:
    corner = row_and_column(merge.partition(":")[0])
    return corner is not None and corner[0] <= _SKETCH_ROWS and corner[1] <= _SKETCH_COLUMNS


def _content(row: TemplateRow) -> str:
    match = ROW.match(row.xml)
    return (match[2] or "") if match else ""


def _number(cell: TemplateCell) -> int:
    """Returns the index of the cell's shared string; -1 if it has none."""
    value = _VALUE.search(cell.content)
    return int(value[2]) if value and (value[2] or "").strip().isdigit() else -1


def _cell_text(cell: TemplateCell, texts: dict[int, str]) -> str:
    kind, formula, value = cell.attributes.get("t"), FORMULA.search(cell.content), _VALUE.search(cell.content)
    if formula and formula[2]:
        return f"={unescape(formula[2])}"
    if kind == "s":
        return texts.get(_number(cell), "")
    if kind == "inlineStr":
        return _plain_text(_PHONETIC.sub("", cell.content))
    return unescape(value[2] or "") if value else ""


def _nth(entries: list[Any], index: str | None) -> Any:
    number = int(index) if index and index.isdigit() else 0
    return entries[number] if number < len(entries) else ()


def _rgb(color: Any) -> str | None:
    """Returns a colour as six digits. None if the colour is not given in digits.

    The two digits before these six are an opacity, which Excel ignores.
    """
    rgb = (color.get("rgb") or "")[-6:] if color is not None else ""
    return rgb if _RGB.fullmatch(rgb) else None


# The most characters of all copies of a sheet's shared formulas: a few bytes can stand for thousands of characters.
_MAX_COPIED = 10_000_000


class SharedFormulas:
    """Gives each cell its own formula in place of a shared one: shared formulas are wrong once rows move."""

    def __init__(self) -> None:
        self._masters: dict[str, tuple[int, int, str]] = {}
        self._copied = 0

    def own(self, content: str, row: int, column: int) -> str:
        match = FORMULA.search(content)
        given = attributes(match[1]) if match else {}
        if match is None or given.get("t") != "shared":
            return content
        index = given.get("si", "")
        if match[2]:
            formula = unescape(match[2])
            self._masters[index] = row, column, formula
        elif index in self._masters:
            above, left, master = self._masters[index]
            self._copied += len(master)
            if self._copied > _MAX_COPIED:
                raise BadTable(f"the shared formulas of a sheet have more than {_MAX_COPIED} characters: shorten them")
            formula = copied(master, row - above, column - left)
        else:
            return content
        return f"<f>{_escaped(formula)}</f>"


def _blocks(sheet: TemplateSheet) -> list[Block]:
    lists: dict[int, str] = {}
    anchors: dict[tuple[int, int], str] = {}
    for row, cell in sheet.marks:
        for mark in cell.marked.marks if cell.marked else ():
            if mark.list is None:
                continue
            if lists.setdefault(row, mark.list) != mark.list:
                raise BadTable(
                    f"row {row} of {sheet.name} has placeholders of two lists, {_named(lists[row])} and "
                    f"{_named(mark.list)}: put them on rows or sheets of their own"
                )
            anchors[row, cell.column] = mark.list
    # All rows of a merged cell with a placeholder are repeated.
    ends: dict[int, int] = {}
    for merge in sheet.merges:
        area, corner = rows_of(merge), row_and_column(merge.partition(":")[0])
        if area and corner in anchors:
            ends[corner[0]] = max(area[1], ends.get(corner[0], 0))
    blocks = list[Block]()
    for row in sorted(lists):
        before = blocks[-1] if blocks else None
        if before and before.name == lists[row] and before.last == row - 1:
            blocks[-1] = Block(before.name, before.first, row)
        else:
            blocks.append(Block(lists[row], row, row))
        if ends.get(row, 0) > blocks[-1].last:
            blocks[-1] = Block(lists[row], blocks[-1].first, ends[row])
    joined = list[Block]()
    for block in blocks:
        before = joined[-1] if joined else None
        if before and block.first <= before.last + 1 and block.name == before.name:
            joined[-1] = Block(block.name, before.first, max(before.last, block.last))
        elif before and block.first <= before.last:
            raise BadTable(
                f"row {block.first} of {sheet.name} belongs to two lists, {_named(before.name)} and "
                f"{_named(block.name)}: a merged cell reaches from one to the other"
            )
        else:
            joined.append(block)
    return joined


def _named(name: str) -> str:
    return f"{{{name}.…}}"


def _all(root: Any, name: str) -> list[Any]:
    return [each for each in root.iter() if isinstance(each.tag, str) and each.tag.rpartition("}")[2] == name]


def _kind(number: str, formats: dict[str | None, str]) -> str | None:
    from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format

    # Excel's own dates in Chinese, Japanese and Korean, which have no code in the file.
    if number.isdigit() and (27 <= int(number) <= 36 or 50 <= int(number) <= 58) and number not in formats:
        return "datetime"
    code = formats.get(number) or BUILTIN_FORMATS.get(int(number) if number.isdigit() else 0, "General")
    if code == "@":
        return "string"
    if is_date_format(code):
        return "datetime"
    if "%" in code:
        return "percent"
    return "number" if re.search("[0#?]", code) else None


def list_names(titles: Sequence[str]) -> dict[str, int]:
    """Returns the index of each table, by the names that its list can have.

    The names are the title of the table and its number, from 1. The first table also has an empty name.
    """
    by_title = {clean(title).strip(): number for number, title in reversed(list(enumerate(titles))) if title.strip()}
    return by_title | {str(number): number - 1 for number in range(1, len(titles) + 1)} | {"": 0}
