"""Any value that a caller sends as a template is parsed or refused with a reason."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import SCALARS, TEXT, examples, json_values
from tidegate.errors import BadTable
from tidegate.sheets.table import (
    ALIGNMENTS,
    CELL_TYPES,
    MAX_DEPTH,
    MAX_ROWS,
    NO_TEMPLATE,
    Node,
    Template,
    depth,
    leaves,
    parse_template,
)

NODE_WORDS = ("name", "title", "children", "style", "row_count")
STYLE_WORDS = ("width", "align", "color", "bg_color", "bold", "type")
ANYTHING = json_values("col", "row", *NODE_WORDS, *STYLE_WORDS)

styles = st.fixed_dictionaries(
    {},
    optional={
        "width": st.floats(0, 1500) | SCALARS,
        "align": st.sampled_from([*ALIGNMENTS, "middle", ""]),
        "color": st.from_regex(r"#?[0-9a-f]{3,6}", fullmatch=True) | st.sampled_from(["red", "", None]),
        "bold": SCALARS,
        "type": st.sampled_from([*CELL_TYPES, "date"]),
    },
)
# Nearly valid, so that most of them pass the first checks.
nodes = st.recursive(
    TEXT | st.fixed_dictionaries({"name": TEXT}, optional={"title": SCALARS, "row_count": SCALARS, "style": styles}),
    lambda inner: st.fixed_dictionaries(
        {"title": TEXT, "children": st.lists(inner, max_size=4)}, optional={"name": SCALARS}
    ),
    max_leaves=10,
)
trees = st.lists(nodes, max_size=5) | st.fixed_dictionaries({"col": st.lists(nodes), "row": st.lists(nodes)}) | ANYTHING


def parsed_or_refused(raw: object) -> Template:
    try:
        return parse_template(raw)
    except BadTable:
        return NO_TEMPLATE


@examples(300)
@given(trees)
@example([""])
@example([{"name": "a", "row_count": "9" * 5000}])
@example({"col": [{"name": "a"}], "row": {"a": "\ud800"}, "\ud800": 1})
def test_any_value_is_a_template_or_refused(raw: Any) -> None:
    parsed = parsed_or_refused(raw)
    assert depth(parsed.cols) <= MAX_DEPTH
    assert depth(parsed.rows) <= MAX_DEPTH
    owners = [leaf.name for leaf in leaves(parsed.rows)]
    assert len(set(owners)) == len(owners)
    for leaf in [*leaves(parsed.cols), *leaves(parsed.rows)]:
        assert leaf.name
        assert leaf.title
        assert 1 <= leaf.row_count <= MAX_ROWS
        assert leaf.style.align in (None, *ALIGNMENTS)
        assert leaf.style.type in (None, *CELL_TYPES)
        assert leaf.style.width is None or 0 < leaf.style.width <= 1400
        for color in (leaf.style.color, leaf.style.bg_color):
            assert color is None or (len(color) == 6 and color == color.upper())


@examples(150)
@given(trees)
def test_parsed_template_parses_to_itself(raw: Any) -> None:
    parsed = parsed_or_refused(raw)
    written = {"col": [as_raw(node) for node in parsed.cols], "row": [as_raw(node) for node in parsed.rows]}
    assert parse_template(written) == parsed
    assert parse_template(json.dumps(written)) == parsed


@examples(150)
@given(TEXT | ANYTHING.map(json.dumps))
@example("[" * 100_000)
@example('{"children":' * 50_000)
@example('[{"name": 1e999}]')
def test_any_text_is_a_template_or_refused(text: str) -> None:
    assert isinstance(parsed_or_refused(text), Template)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"title": "t", "children": [inner]}])
def test_endless_nesting_is_refused_quickly(wrap: Any) -> None:
    raw: Any = {"name": "a"}
    for _ in range(100_000):
        raw = wrap(raw)

    with pytest.raises(BadTable):
        parse_template([raw])


def test_very_many_repeated_row_heads_are_refused_quickly() -> None:
    heads = [str(number) for number in range(100_000)]
    started = time.process_time()

    with pytest.raises(BadTable, match="names of row heads must differ"):
        parse_template({"col": ["a"], "row": [*heads, "7"]})

    assert time.process_time() - started < 5


def as_raw(node: Node) -> dict[str, Any]:
    if node.children:
        return {"title": node.title, "name": node.name, "children": [as_raw(child) for child in node.children]}
    style = {name: getattr(node.style, name) for name in STYLE_WORDS}
    return {"title": node.title, "name": node.name, "row_count": node.row_count, "style": style}
