"""One table of an export: its template, heads, columns, texts and warnings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from msgspec.structs import astuple

from tidegate.common.json_input import read_json
from tidegate.errors import BadTable
from tidegate.sheets.values import MAX_CELL_UNITS

if TYPE_CHECKING:
    from tidegate.sheets.xlsx_cells import Total

# --- header tree
# The header trees of a table: the parsed template, and the position of each head cell.


# How a value is hidden: phone, id, card, email, or how many characters stay at its start and end.
Mask = str | tuple[int, int]


@dataclass(frozen=True, slots=True)
class LeafStyle:
    width: float | None = None
    align: str | None = None
    color: str | None = None
    bg_color: str | None = None
    bold: bool = False
    wrap: bool = False
    type: str | None = None
    # An Excel number format.
    format: str | None = None
    # Decimal places of a column of type decimal in Parquet, where they are part of the type.
    scale: int = 2
    # Whether a totals row shows the sum of the column.
    total: bool = False
    # What is written in place of values, by their text, and in place of all others (`map_default`; None: they stay).
    map: tuple[tuple[str, Any], ...] = ()
    map_default: Any = None
    mask: Mask | None = None
    # Whether equal neighbours down the column are merged, within those of merged columns to its left.
    merge: bool = False
    # What a link shows in place of its address: a text, or what a row has under this key.
    label: str | None = None
    label_key: str | None = None


PLAIN = LeafStyle()


@dataclass(frozen=True, slots=True)
class Node:
    """One head cell of a template. The `name` of a leaf is the key of its column, or of its row head."""

    title: str
    name: str = ""
    children: tuple[Node, ...] = ()
    row_count: int = 1
    style: LeafStyle = PLAIN

    @property
    def depth(self) -> int:
        return 1 + max((child.depth for child in self.children), default=0)

    def leaves(self) -> Iterator[Node]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(frozen=True, slots=True)
class Template:
    """The heads of a table: trees of columns and of row heads. Without `cols`, the keys of the rows are the columns."""

    cols: tuple[Node, ...] = ()
    rows: tuple[Node, ...] = ()

    def warnings(self, keys: Sequence[str]) -> list[str]:
        """Returns a warning about columns that are empty because no row has their key."""
        unseen = [leaf.name for leaf in leaves(self.cols) if leaf.name not in set(keys)] if keys else []
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        return [f"template: no row has {', '.join(unseen[:5])}{more}, so these columns are empty"] if unseen else []


NO_TEMPLATE = Template()


@dataclass(frozen=True, slots=True)
class HeadCell:
    """A cell with its span; rows and columns count from 1 as in Excel."""

    title: str
    row: int
    col: int
    height: int = 1
    width: int = 1
    leaf: Node | None = field(default=None, compare=False)

    @property
    def merged(self) -> bool:
        return self.height > 1 or self.width > 1


def leaves(nodes: Sequence[Node]) -> list[Node]:
    return [leaf for node in nodes for leaf in node.leaves()]


def depth(nodes: Sequence[Node]) -> int:
    return max((node.depth for node in nodes), default=0)


def place_columns(nodes: Sequence[Node], *, top: int, left: int) -> list[HeadCell]:
    """Returns the cells of a column tree whose top left cell is at row `top`, column `left`."""
    cells: list[HeadCell] = []
    _place_siblings(nodes, {}, depth(nodes), top, left, cells)
    return cells


def place_rows(nodes: Sequence[Node], counts: Mapping[str, int], *, top: int, left: int) -> list[HeadCell]:
    """Returns the cells of a row tree. A leaf is as high as its number of rows.

    `counts`: these numbers, by leaf name.
    """
    cells: list[HeadCell] = []
    sizes = {leaf.name: max(leaf.row_count, counts.get(leaf.name, 0)) for leaf in leaves(nodes)}
    _place_siblings(nodes, sizes, depth(nodes), left, top, cells)
    return [HeadCell(c.title, c.col, c.row, c.width, c.height, c.leaf) for c in cells]


def _place_siblings(
    nodes: Sequence[Node], sizes: Mapping[str, int], levels: int, level: int, start: int, into: list[HeadCell]
) -> int:
    """Places siblings next to each other; `levels` is the remaining depth of the tree. Returns their breadth."""
    used = 0
    for node in nodes:
        at = len(into)
        into.append(HeadCell(node.title, level, start + used))
        if node.children:
            breadth = _place_siblings(node.children, sizes, levels - 1, level + 1, start + used, into)
            into[at] = HeadCell(node.title, level, start + used, 1, breadth)
        else:
            breadth = sizes.get(node.name, 1)
            into[at] = HeadCell(node.title, level, start + used, levels, breadth, node)
        used += breadth
    return used


# --- table
# One table of an export and its layout: the positions of texts, heads and merged cells.

TITLE_HEIGHT = 36.0
GAP_ROWS = 3
MAX_COLUMNS = 16_384
_BREAK = re.compile(r"<\s*+(?:/\s*+)?br\s*+(?:/\s*+)?>|\r\n?", re.IGNORECASE)
_BETWEEN = " " * 8

Texts = Mapping[str, object] | str


@dataclass(frozen=True, slots=True)
class SheetTable:
    template: Template = NO_TEMPLATE
    title: str = ""
    # The name of its sheet; by default, it is made from the title.
    sheet_name: str | None = None
    summary: str = ""
    header: Texts = ""
    footer: Texts = ""
    header_align: str = "right"
    footer_align: str = "right"
    default_width: float | None = None
    default_height: float | None = None
    # None: yes if it is the only table of its sheet.
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None
    # Whether a footer may come with the last rows. Its row is kept free on every sheet.
    late_footer: bool = False
    # The project's masks, by `masked_name` of the column; they hold whatever the template says.
    masks: Mapping[str, Mask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextRow:
    """A line of text over the full width, above or below the data."""

    kind: str
    text: str
    height: float
    align: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a table are; rows and columns count from 1 within the table."""

    texts: tuple[TextRow, ...]
    head: tuple[HeadCell, ...]
    columns: tuple[Node, ...]
    head_top: int
    head_rows: int
    row_head_width: int
    footer: TextRow | None
    late_footer: bool = False

    @property
    def width(self) -> int:
        return max(1, self.row_head_width + len(self.columns))

    @property
    def data_top(self) -> int:
        return self.head_top + self.head_rows

    @property
    def has_totals(self) -> bool:
        return any(leaf.style.total for leaf in self.columns)

    @property
    def end_rows(self) -> int:
        """How many rows follow the data: totals and footer."""
        return int(self.has_totals) + (1 if self.footer else 0)

    @property
    def reserved_rows(self) -> int:
        """How many rows of a sheet are kept free for what follows the data."""
        return int(self.has_totals) + (1 if self.footer or self.late_footer else 0)

    @property
    def top_height(self) -> float:
        """The height of everything above the data, in points."""
        return sum(line.height for line in self.texts) + 15.0 * self.head_rows

    @property
    def top_merges(self) -> list[HeadCell]:
        lines = [HeadCell(line.text, row, 1, 1, self.width) for row, line in enumerate(self.texts, 1)]
        return [cell for cell in [*lines, *self.head] if cell.merged]


def lay_out(table: SheetTable, keys: Sequence[str] = ()) -> Layout:
    """Returns the layout of a table. The `keys` of the rows are the columns if the template names none."""
    cols = table.template.cols or tuple(Node(key, key) for key in keys)
    texts = _top_texts(table)
    head_top, head_rows, row_heads = len(texts) + 1, depth(cols), depth(table.template.rows)
    if row_heads + len(leaves(cols)) > MAX_COLUMNS:
        raise BadTable(f"the table has more than {MAX_COLUMNS} columns: leave some out")
    head = place_columns(cols, top=head_top, left=row_heads + 1)
    if row_heads and head_rows:
        head.insert(0, HeadCell("", head_top, 1, head_rows, row_heads))
    footer = _line("footer", joined(table.footer), table.footer_align)
    return Layout(texts, tuple(head), tuple(leaves(cols)), head_top, head_rows, row_heads, footer, table.late_footer)


def _top_texts(table: SheetTable) -> tuple[TextRow, ...]:
    lines = (
        TextRow("title", broken(table.title), TITLE_HEIGHT, "center") if table.title else None,
        _line("summary", broken(table.summary), "left"),
        _line("header", joined(table.header), table.header_align),
    )
    return tuple(line for line in lines if line)


def _line(kind: str, text: str, align: str) -> TextRow | None:
    return TextRow(kind, text, text_height(text.count("\n") + 1), align) if text else None


def text_height(lines: int) -> float:
    return 14.0 * lines + 14.0


def broken(text: str) -> str:
    """Returns the text with line breaks in place of `<br>`, in any spelling."""
    return _BREAK.sub("\n", text)


def joined(texts: Texts) -> str:
    """Returns the texts as one text, with pairs written as `key：value`.

    A pair begins a new line only if the value before it ends with a line break.
    """
    if isinstance(texts, str):
        return broken(texts)
    line = ""
    for key, value in texts.items():
        gap = "" if not line or line.endswith("\n") else _BETWEEN
        line += f"{gap}{key}：{broken('' if value is None else str(value))}"
    return line.rstrip("\n")


# --- template parser
# Parses a caller's template in any of its forms: none, `{key: title}`, a list of nodes, `{col, row}`.

MAX_DEPTH = 32
MAX_ROWS = 1_048_576
ALIGNMENTS = ("left", "center", "right")
CELL_TYPES = ("string", "number", "integer", "decimal", "date", "datetime", "currency", "percent", "boolean", "link")
# Decimal places of a decimal column in Parquet.
MOST_PLACES = 18
NODE_FIELDS = ("title", "name", "children", "row_count", "style")
STYLE_FIELDS = (
    "width",
    "align",
    "color",
    "bg_color",
    "bold",
    "wrap",
    "type",
    "format",
    "scale",
    "total",
    "map",
    "map_default",
    "mask",
    "merge",
    "label",
    "label_key",
)
MASKS = ("phone", "id", "card", "email")
MOST_MAPPED = 1000
MOST_SHOWN = 64
LONGEST_FORMAT = LONGEST_LABEL = 255
# What may stand in brackets: colours, conditions, spans of time, digits of other scripts, currencies and languages.
_BRACKETS = (
    r"\[(?:black|blue|cyan|green|magenta|red|white|yellow|color ?\d{1,2}|(?:[<>]=?|<>|=) ?-?\d+(?:\.\d+)?(?:E[+-]?\d+)?"
    r'|h+|m+|s+|DBNum[1-4]|\$[^\[\]"]*)\]'
)
# One section of a number format. Excel finds a file broken if letters stand outside of quotes and mean nothing to it.
_SECTION = rf"""(?:"[^"]*"|\\.|[_*].|{_BRACKETS}|General|am/pm|a/p|E[+-]|[0#?@.,%/:ymdhsgeb]|[^"\\\[\];_*A-Za-z])*+"""
_NUMBER_FORMAT = re.compile(rf"{_SECTION}(?:;{_SECTION}){{0,3}}", re.IGNORECASE)
NAMED_COLORS = {
    "black": "000000",
    "white": "FFFFFF",
    "red": "FF0000",
    "green": "008000",
    "blue": "0000FF",
    "yellow": "FFFF00",
    "cyan": "00FFFF",
}
_HEX_COLOR = re.compile(r"#?([0-9A-Fa-f]{6}|[0-9A-Fa-f]{3})")


def parse_template(raw: object) -> Template:
    """Returns a caller's template, parsed from any of its forms. Raises BadTable if `raw` has none of these forms."""
    if isinstance(raw, str):
        raw = _from_json(raw)
    if not raw:
        return NO_TEMPLATE
    if isinstance(raw, Mapping) and isinstance(raw.get("col", raw.get("row")), list | dict):
        unknown = [str(key) for key in raw if key not in ("col", "row")]
        if unknown:
            raise BadTable(f"template has no field {', '.join(unknown[:5])}: it takes col and row")
        parsed = Template(_nodes(raw.get("col"), "template.col"), _nodes(raw.get("row"), "template.row"))
    else:
        parsed = Template(_nodes(raw, "template"))
    return _checked(parsed)


def _from_json(text: str) -> object:
    if not text.strip():
        return None
    try:
        return read_json(text)
    except ValueError as error:
        raise BadTable(f"template is not JSON: {error}") from error


def _checked(template: Template) -> Template:
    if len(leaves(template.cols)) > MAX_COLUMNS:
        raise BadTable(f"template has more than {MAX_COLUMNS} columns: leave some out")
    owners = leaves(template.rows)
    twice = [name for name, count in Counter(leaf.name for leaf in owners).items() if count > 1]
    if twice:
        raise BadTable(f"template.row names {', '.join(sorted(twice)[:5])} twice; names of row heads must differ")
    shapes = dict[str, tuple[Any, ...]]()
    for leaf in leaves(template.cols):
        shape = leaf.style.map, leaf.style.map_default, leaf.style.mask
        if shapes.setdefault(leaf.name, shape) != shape:
            raise BadTable(
                f"template names {leaf.name[:60]} twice, with different maps or masks, which act on all columns of a "
                "key: let the rows have it under two keys"
            )
    if sum(leaf.row_count for leaf in owners) > MAX_ROWS:
        raise BadTable(f"template.row has more than {MAX_ROWS} rows: leave some out, or lower a row_count")
    return template


def _nodes(raw: object, where: str, level: int = 1) -> tuple[Node, ...]:
    if raw is None:
        return ()
    if isinstance(raw, Mapping):
        raw = [{"name": key, "title": title} for key, title in raw.items()]
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise BadTable(f'{where} is not a list of nodes: write [{{"name": "id", "title": "Id"}}, …]')
    if level > MAX_DEPTH:
        raise BadTable(f"{where} is nested deeper than {MAX_DEPTH} levels: use fewer")
    return tuple(_node(item, f"{where}[{index}]", level) for index, item in enumerate(raw))


def _node(raw: object, where: str, level: int) -> Node:
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping):
        raise BadTable(f'{where} is not an object with a title: write {{"name": "id", "title": "Id"}}')
    _refuse_unknown(raw, NODE_FIELDS, where)
    children = _nodes(raw.get("children"), f"{where}.children", level + 1)
    name, title = _text(raw.get("name"), f"{where}.name"), _text(raw.get("title"), f"{where}.title")
    if not (name or title):
        raise BadTable(f"{where} has neither a name nor a title: give it one")
    if children:
        return Node(title or name, name, children)
    count, style = _row_count(raw.get("row_count"), where), _style(raw.get("style"), where)
    return Node(title or name, name or title, (), count, style)


def _beginning(value: object) -> str:
    """Returns the beginning of a refused value, for an error text."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _text(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    raise BadTable(f"{where} is not text: {_beginning(value)}")


def _row_count(value: object, where: str) -> int:
    if value is None:
        return 1
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_ROWS)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ROWS:
        raise BadTable(f"{where}.row_count is not a whole number from 1 to {MAX_ROWS}: {_beginning(value)}")
    return value


def _style(raw: object, where: str) -> LeafStyle:
    if not raw:
        return PLAIN
    if not isinstance(raw, Mapping):
        raise BadTable(f"{where}.style is not an object: {_beginning(raw)}")
    _refuse_unknown(raw, STYLE_FIELDS, f"{where}.style")
    return LeafStyle(
        width=_width(raw.get("width"), where),
        align=_one_of(raw.get("align"), ALIGNMENTS, f"{where}.style.align"),
        color=_color(raw.get("color"), f"{where}.style.color"),
        bg_color=_color(raw.get("bg_color"), f"{where}.style.bg_color"),
        bold=bool(raw.get("bold")),
        wrap=bool(raw.get("wrap")),
        type=_one_of(raw.get("type"), CELL_TYPES, f"{where}.style.type"),
        format=_format(raw.get("format"), f"{where}.style.format"),
        scale=_scale(raw.get("scale"), f"{where}.style.scale"),
        total=bool(raw.get("total")),
        map=_map(raw.get("map"), f"{where}.style.map"),
        map_default=_scalar(raw.get("map_default"), f"{where}.style.map_default"),
        merge=bool(raw.get("merge")),
        label=_label(raw, "label", where),
        label_key=_label(raw, "label_key", where),
        mask=None if raw.get("mask") in (None, "") else parse_mask(raw["mask"], f"{where}.style.mask"),
    )


def _label(raw: Mapping[str, object], name: str, where: str) -> str | None:
    text = _text(raw.get(name), f"{where}.style.{name}")
    if text and raw.get("type") != "link":
        raise BadTable(f"{where}.style.{name} is for columns of type link: set type to link, or leave it out")
    if text and name == "label_key" and raw.get("label"):
        raise BadTable(f"{where}.style has label and label_key: give one of them")
    if len(text) > LONGEST_LABEL:
        raise BadTable(f"{where}.style.{name} has more than {LONGEST_LABEL} characters: {_beginning(text)}")
    return text or None


def _scale(value: object, where: str) -> int:
    if value is None:
        return PLAIN.scale
    if type(value) is int and 0 <= value <= MOST_PLACES:
        return value
    raise BadTable(f"{where} is the number of decimal places, 0 to {MOST_PLACES}, not {_beginning(value)}")


def _refuse_unknown(raw: Mapping[str, object], allowed: Sequence[str], where: str) -> None:
    """Raises BadTable for unknown fields. A misspelt field would otherwise be ignored, and leave its column empty."""
    unknown = [str(field) for field in raw if field not in allowed]
    if unknown:
        raise BadTable(f"{where} has no field {', '.join(unknown[:5])}: it takes {', '.join(allowed)}")


def _map(value: object, where: str) -> tuple[tuple[str, Any], ...]:
    if not value:
        return ()
    if not isinstance(value, Mapping) or len(value) > MOST_MAPPED:
        raise BadTable(
            f'{where} is not an object of at most {MOST_MAPPED} texts such as {{"0": "unpaid", "1": "paid"}}: '
            f"{_beginning(value)}"
        )
    return tuple((str(key), _scalar(text, f"{where}.{key}")) for key, text in value.items())


def _scalar(value: object, where: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    raise BadTable(f"{where} is not text, a number or a boolean: {_beginning(value)}")


def masked_name(name: str) -> str:
    """Returns a column's name as masks compare it: without blanks, in lower case and in letters of normal width."""
    return "".join(char for char in normalize("NFKC", name).casefold() if char.isprintable() and char != " ")


def parse_mask(value: object, where: str) -> Mask:
    """Returns a mask from what the caller wrote: a name, or `{start, end}`. Raises BadTable for anything else."""
    if isinstance(value, str) and value in MASKS:
        return value
    if isinstance(value, Mapping) and set(value) <= {"start", "end"}:
        start, end = value.get("start", 0), value.get("end", 0)
        if all(type(each) is int and 0 <= each <= MOST_SHOWN for each in (start, end)):
            return start, end
    raise BadTable(
        f"{where} must be {', '.join(MASKS)}, or how many characters stay visible, such as "
        f'{{"start": 3, "end": 4}} (at most {MOST_SHOWN}), not {_beginning(value)}'
    )


def _format(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    is_format = isinstance(value, str) and len(value) <= LONGEST_FORMAT and value.isprintable()
    if not isinstance(value, str) or not is_format or not _NUMBER_FORMAT.fullmatch(value):
        raise BadTable(
            f"{where} is not an Excel number format such as #,##0.00, of at most {LONGEST_FORMAT} characters, four "
            f'sections and with words in quotes (0.0 "kg"): {_beginning(value)}'
        )
    return value


def _width(value: object, where: str) -> float | None:
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1400:
        raise BadTable(f"{where}.style.width is not a width in pt from 1 to 1400: {_beginning(value)}")
    return float(value)


def _one_of(value: object, allowed: Sequence[str], where: str) -> str | None:
    if value is None or value == "":
        return None
    if value not in allowed:
        raise BadTable(f"{where} must be one of {', '.join(allowed)}, not {_beginning(value)}")
    return str(value)


def _color(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.lower() in NAMED_COLORS:
        return NAMED_COLORS[value.lower()]
    match = _HEX_COLOR.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise BadTable(f"{where} is not a colour such as FF0000 or red: {_beginning(value)}")
    digits = match[1].upper()
    return digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)


# --- columns
# Columns of rows, by key, in the order in which the keys first occur.

ROW_HEAD = "_row_head_"

# A mapping by key, or a `TypedRow`.
Row = Any


def keys_of(rows: Iterable[Row]) -> list[str]:
    """Returns all keys of the rows, in the order of their first occurrence."""
    found: dict[str, None] = {}
    last: tuple[str, ...] = ()
    for row in rows:
        keys = tuple(row)
        if keys != last:
            found.update(dict.fromkeys(keys))
            last = keys
    return list(found)


def merge_keys(key_lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(key for keys in key_lists for key in keys))


def column_of(rows: Sequence[Row], key: str) -> list[Any]:
    """Returns the value of a key in each row; None for rows without it."""
    getters = getattr(type(rows[0]), "getters", None) if rows else None
    if getters is not None:
        return list(map(getters[key], rows)) if key in getters else [None] * len(rows)
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key) for row in rows]


@cache
def letters(column: int) -> str:
    """Returns the letters of a column's number: 1 is A, 27 is AA."""
    name = ""
    while column > 0:
        column, rest = divmod(column - 1, 26)
        name = chr(65 + rest) + name
    return name


def columns_of(rows: Sequence[Row], keys: Sequence[str]) -> list[list[Any]]:
    """Returns `column_of` for each key, but with fewer calls."""
    getters = getattr(type(rows[0]), "getters", None) if rows else None
    if getters is None:
        if rows and len(keys) > 1:
            try:
                return [list(column) for column in zip(*map(itemgetter(*keys), rows), strict=True)]
            except KeyError:
                pass
        return [column_of(rows, key) for key in keys]
    found = dict(zip(getters, zip(*map(astuple, rows), strict=True), strict=True))
    return [list(found[key]) if key in found else [None] * len(rows) for key in keys]


def flat_rows(data: object, where: str = "data") -> list[dict[str, Any]]:
    """Returns the rows of a list, or of groups given as `{group: rows}`.

    Each row of a group gets the name of the group as its row head. An object of rows, such as `{"0": row, "2": row}`,
    counts as a list, because PHP writes such an object for a list that lacks an index.
    """
    if isinstance(data, Mapping) and not _has_rows(data):
        return [
            {**row, ROW_HEAD: str(group)} for group, rows in data.items() for row in _rows(rows, f"{where}.{group}")
        ]
    return list(_rows(data, where))


def check_rows(rows: Sequence[Row], template: Template, *, excel: bool) -> None:
    """Raises BadTable if the rows cannot be written to a sheet with this template."""
    if not excel:
        return
    if not template.cols and len(keys_of(rows)) > MAX_COLUMNS:
        raise BadTable(
            f"the rows have {len(keys_of(rows))} different keys, but a sheet has {MAX_COLUMNS} columns: "
            "name the columns in a template, or export csv"
        )
    owners = {leaf.name for leaf in leaves(template.rows)}
    for row in rows if owners else ():
        if str(row.get(ROW_HEAD)) not in owners:
            fault = (
                f"row head {row[ROW_HEAD]!r} is not in the template" if ROW_HEAD in row else f"a row has no {ROW_HEAD}"
            )
            raise BadTable(f"{fault}: use one of {', '.join(sorted(owners)[:20])}")


def _has_rows(data: Mapping[Any, object]) -> bool:
    """Whether the values of an object are rows. If not, they are groups of rows.

    PHP may write a list as an object with numbers as keys. So values that have only numbers as keys usually are groups.
    """
    rows = [row for row in data.values() if isinstance(row, dict)]
    if not rows or len(rows) < len(data):
        return False
    if not all(row and all(map(_is_index, row)) for row in rows):
        return True
    # All inner keys are numbers: either lists of PHP, whose group names may be years, or rows with numbered cells. The
    # cells of rows are not objects.
    return all(map(_is_index, data)) and not all(isinstance(cell, dict) for row in rows for cell in row.values())


def _is_index(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit()


def _rows(data: object, where: str) -> Iterator[dict[str, Any]]:
    if isinstance(data, Mapping) and _has_rows(data):
        data = list(data.values())
    if not isinstance(data, list):
        raise BadTable(f'{where} is not a list of rows: write [{{"column": "value"}}, …]')
    for index, row in enumerate(data):
        if not isinstance(row, dict):
            raise BadTable(f'{where}[{index}] is not an object with columns as keys: write {{"column": "value"}}')
        yield row


@dataclass(slots=True)
class Notes:
    """Warnings about a rendered file, for its record."""

    cut_cells: int = 0
    # Parquet: values that are not of their column's type.
    refused_values: int = 0
    # By column: values that its total leaves out because they are not numbers.
    not_summed: Counter[str] = field(default_factory=Counter)
    # Placeholders of lists whose numbers are text, although formulas of the filled template compute with them.
    not_added: dict[str, None] = field(default_factory=dict)

    def add_totals(self, columns: Iterable[Node], totals: Iterable[Total | None]) -> None:
        for column, total in zip(columns, totals, strict=True):
            if total is not None and total.left_out:
                self.not_summed[column.name] += total.left_out

    def warnings(self) -> list[str]:
        found = []
        if self.cut_cells:
            cells = "1 cell was" if self.cut_cells == 1 else f"{self.cut_cells} cells were"
            found.append(f"{cells} cut: an Excel cell has at most {MAX_CELL_UNITS:,} characters")
        if self.refused_values:
            values = "1 value was" if self.refused_values == 1 else f"{self.refused_values} values were"
            found.append(f"{values} left out, because the template gives the column another type")
        for name, count in self.not_summed.items():
            values = "1 value that is not a number" if count == 1 else f"{count} values that are not numbers"
            found.append(f"the total of {name} leaves out {values}")
        if self.not_added:
            found.append(
                f"fill: formulas leave out numbers of {', '.join(self.not_added)} that are text: they came as text, "
                "have more than 15 digits, have other characters beside them, or are in a cell for dates. In a cell "
                "with a number format, 1.50 becomes a number, 1,234.50 not"
            )
        return found
