from __future__ import annotations

import json
import time

import pytest

from tests.support.exports.samples import group, leaf
from tidegate.errors import BadTable
from tidegate.sheets.table import LeafStyle, Node, Template, depth, leaves, parse_template

SIMPLE = Template((Node("姓名", "name"), Node("年龄", "age")))
LISTED = [leaf("姓名", "name"), leaf("年龄", "age")]


@pytest.mark.parametrize(
    "raw",
    [
        {"name": "姓名", "age": "年龄"},
        LISTED,
        {"col": LISTED},
        {"col": {"name": "姓名", "age": "年龄"}},
        json.dumps({"name": "姓名", "age": "年龄"}),
        json.dumps(LISTED),
    ],
)
def test_simple_forms_give_the_same_template(raw: object) -> None:
    assert parse_template(raw) == SIMPLE


@pytest.mark.parametrize("raw", [None, "", {}, [], "null"])
def test_empty_template_means_no_columns_of_its_own(raw: object) -> None:
    assert parse_template(raw) == Template()


def test_key_named_col_is_a_key() -> None:
    assert leaves(parse_template({"col": "列", "row": "行"}).cols) == [Node("列", "col"), Node("行", "row")]


def test_nested_columns_and_rows_are_parsed() -> None:
    parsed = parse_template(
        {
            "col": [group("人员", leaf("姓名", "name"), group("其它", leaf("年龄", "age")))],
            "row": [group("云研发", leaf("前端", "front_end", row_count=2), leaf("后端", "back_end"))],
        }
    )

    assert depth(parsed.cols) == 3
    assert [(node.name, node.row_count) for node in leaves(parsed.rows)] == [("front_end", 2), ("back_end", 1)]


def test_leaf_style_is_parsed() -> None:
    style = {"width": 90, "align": "right", "color": "#f00", "bg_color": "yellow", "bold": True, "type": "number"}
    (node,) = parse_template([leaf("金额", "amount", style=style)]).cols

    assert node.style == LeafStyle(90.0, "right", "FF0000", "FFFF00", bold=True, type="number")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{not json", "template is not JSON"),
        (5, "not a list"),
        ([5], r"template\[0\] is not an object"),
        ([{"style": {}}], "neither a name nor a title"),
        ([group("a", {"title": {}})], r"template\[0\].children\[0\].title"),
        ([leaf("a", "a", style={"align": "middle"})], "must be one of left, center, right"),
        ([leaf("a", "a", style={"type": "day"})], "must be one of string, number, integer"),
        ([leaf("a", "a", style={"color": "12345"})], "not a colour"),
        ([leaf("a", "a", style={"width": -1})], "width"),
        ([leaf("a", "a", style={"format": '0"kg'})], "format"),
        ([leaf("a", "a", style={"format": "0.0 kilo"})], "with words in quotes"),
        ([leaf("a", "a", style={"format": "0;0;0;0;0"})], "four sections"),
        ([leaf("a", "a", style={"format": "[red"})], "format"),
        ([leaf("a", "a", style={"format": "[Foo]0"})], "format"),
        ([leaf("a", "a", style={"format": "[>x]0"})], "format"),
        ([leaf("a", "a", style={"format": "0\\"})], "format"),
        ({"col": LISTED, "row": [leaf("x", "x", row_count=0)]}, "row_count"),
        ({"col": LISTED, "row": [leaf("x", "x"), leaf("y", "x")]}, "names x twice"),
        (
            [{"name": "s"}, {"name": "s", "title": "State", "style": {"map": {"0": "unpaid"}}}],
            "s twice, with different",
        ),
        (
            [{"name": "s", "style": {"mask": "id"}}, {"title": "g", "children": [{"name": "s"}]}],
            "s twice, with different",
        ),
        ({"col": LISTED, "rows": []}, "template has no field rows"),
        ([{"name": str(number)} for number in range(16_385)], "more than 16384 columns"),
    ],
)
def test_bad_template_is_refused_with_its_place(raw: object, message: str) -> None:
    with pytest.raises(BadTable, match=message):
        parse_template(raw)


def test_tree_that_is_too_deep_is_refused() -> None:
    tree = leaf("end", "end")
    for _ in range(40):
        tree = group("g", tree)

    with pytest.raises(BadTable, match="deeper than 32"):
        parse_template([tree])


@pytest.mark.parametrize(
    "text",
    [
        "#,##0.00",
        '0.0 "kg"',
        "[Red]-0;[>=100]0.0;;@",
        "yyyy-mm-dd hh:mm:ss",
        "[$-409]d-mmm-yy;@",
        "[h]:mm:ss.000",
        "[Color10][<>-1.5]0",
        "[DBNum2][$-804]General",
        "[$¥-zh-CN]#,##0",
        "0.00E+00",
        "# ?/?",
        '_-* #,##0.00 "€"_-;-* #,##0.00 "€"_-;_-* "-"?? "€"_-;_-@_-',
        "yyyy年mm月dd日",
        "¥#,##0",
        "h:mm AM/PM",
        "General",
        "\\x0",
        "(000) 000-0000",
    ],
)
def test_number_formats_of_excel_are_taken(text: str) -> None:
    (node,) = parse_template([leaf("a", "a", style={"format": text})]).cols
    assert node.style.format == text


def test_format_is_checked_in_linear_time() -> None:
    began = time.process_time()
    with pytest.raises(BadTable):
        parse_template([leaf("a", "a", style={"format": "0" * 253 + '"'})])
    assert time.process_time() - began < 0.5
