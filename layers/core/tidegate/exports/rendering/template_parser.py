"""Parses a caller's template in any of its forms: none, `{key: title}`, a list of nodes, `{col, row}`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.common.json_input import read_json
from tidegate.errors import BadTable
from tidegate.exports.rendering.header_tree import NO_TEMPLATE, PLAIN, LeafStyle, Node, Template, leaves
from tidegate.exports.rendering.table import MAX_COLUMNS

MAX_DEPTH = 32
MAX_ROWS = 1_048_576
ALIGNMENTS = ("left", "center", "right")
CELL_TYPES = ("string", "number", "date", "datetime", "currency", "percent", "boolean", "link")
NODE_FIELDS = ("title", "name", "children", "row_count", "style")
STYLE_FIELDS = ("width", "align", "color", "bg_color", "bold", "wrap", "type", "format", "total")
LONGEST_FORMAT = 255
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


def _shown(value: object) -> str:
    """The beginning of a refused value, for an error text."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _text(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    raise BadTable(f"{where} is not text: {_shown(value)}")


def _row_count(value: object, where: str) -> int:
    if value is None:
        return 1
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_ROWS)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ROWS:
        raise BadTable(f"{where}.row_count is not a whole number from 1 to {MAX_ROWS}: {_shown(value)}")
    return value


def _style(raw: object, where: str) -> LeafStyle:
    if not raw:
        return PLAIN
    if not isinstance(raw, Mapping):
        raise BadTable(f"{where}.style is not an object: {_shown(raw)}")
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
        total=bool(raw.get("total")),
    )


def _refuse_unknown(raw: Mapping[str, object], allowed: Sequence[str], where: str) -> None:
    """Refuses a misspelt field, which would otherwise be ignored and leave its column empty."""
    unknown = [str(field) for field in raw if field not in allowed]
    if unknown:
        raise BadTable(f"{where} has no field {', '.join(unknown[:5])}: it takes {', '.join(allowed)}")


def _format(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > LONGEST_FORMAT or not value.isprintable():
        raise BadTable(
            f"{where} is not an Excel number format such as #,##0.00, of at most {LONGEST_FORMAT} characters: "
            f"{_shown(value)}"
        )
    return value


def _width(value: object, where: str) -> float | None:
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1400:
        raise BadTable(f"{where}.style.width is not a width in pt from 1 to 1400: {_shown(value)}")
    return float(value)


def _one_of(value: object, allowed: Sequence[str], where: str) -> str | None:
    if value is None or value == "":
        return None
    if value not in allowed:
        raise BadTable(f"{where} must be one of {', '.join(allowed)}, not {_shown(value)}")
    return str(value)


def _color(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.lower() in NAMED_COLORS:
        return NAMED_COLORS[value.lower()]
    match = _HEX_COLOR.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise BadTable(f"{where} is not a colour such as FF0000 or red: {_shown(value)}")
    digits = match[1].upper()
    return digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
