from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.support.exports.samples import SEED_TABLE
from tidegate.sheets.table import HeadCell, Node, depth, lay_out, leaves, place_columns, place_rows

names = (f"leaf{number}" for number in range(10**9))
leaf_nodes = st.builds(lambda title, count: Node(title, next(names), (), count), st.text(max_size=3), st.integers(1, 4))


def branches(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    below = st.lists(children, min_size=1, max_size=3)
    return st.builds(lambda title, nodes: Node(title, "", tuple(nodes)), st.text(max_size=3), below)


nodes = st.recursive(leaf_nodes, branches, max_leaves=12)
trees = st.lists(nodes, min_size=1, max_size=4)


def covered(cells: list[HeadCell]) -> Counter[tuple[int, int]]:
    return Counter(
        (row, col)
        for cell in cells
        for row in range(cell.row, cell.row + cell.height)
        for col in range(cell.col, cell.col + cell.width)
    )


@given(trees, st.integers(1, 9), st.integers(1, 9))
def test_merges_of_any_tree_cover_the_head_without_overlap(tree: list[Node], top: int, left: int) -> None:
    cells = covered(place_columns(tree, top=top, left=left))

    assert set(cells.values()) == {1}
    assert set(cells) == {
        (row, col) for row in range(top, top + depth(tree)) for col in range(left, left + len(leaves(tree)))
    }


@given(trees)
def test_every_leaf_of_any_tree_has_one_column_in_order(tree: list[Node]) -> None:
    owned = [cell for cell in place_columns(tree, top=1, left=1) if cell.leaf]

    assert [cell.leaf for cell in owned] == leaves(tree)
    assert [(cell.col, cell.width) for cell in owned] == [(col, 1) for col in range(1, len(leaves(tree)) + 1)]
    assert all(cell.row + cell.height - 1 == depth(tree) for cell in owned)


@given(trees, st.data())
def test_leaf_of_any_row_tree_is_as_high_as_its_rows(tree: list[Node], data: st.DataObject) -> None:
    counts = {leaf.name: data.draw(st.integers(0, 6)) for leaf in leaves(tree)}
    cells = place_rows(tree, counts, top=5, left=1)
    heights = [max(leaf.row_count, counts[leaf.name]) for leaf in leaves(tree)]

    assert [cell.height for cell in cells if cell.leaf] == heights
    grid = covered(cells)
    assert set(grid.values()) == {1}
    assert len(grid) == depth(tree) * sum(heights)


def test_branch_spans_its_leaves_and_leaf_reaches_the_bottom() -> None:
    tree = [Node("a", "a"), Node("b", "", (Node("c", "c"), Node("d", "", (Node("e", "e"), Node("f", "f")))))]

    assert place_columns(tree, top=4, left=2) == [
        HeadCell("a", 4, 2, 3, 1),
        HeadCell("b", 4, 3, 1, 3),
        HeadCell("c", 5, 3, 2, 1),
        HeadCell("d", 5, 4, 1, 2),
        HeadCell("e", 6, 4, 1, 1),
        HeadCell("f", 6, 5, 1, 1),
    ]


def test_height_of_text_rows_grows_by_14_per_line() -> None:
    layout = lay_out(SEED_TABLE)

    assert [(line.kind, line.height) for line in layout.texts] == [("title", 36), ("summary", 42), ("header", 28)]
    assert layout.texts[2].text == "油站：钓鱼岛" + " " * 8 + "日期：2020-07-24"
    assert layout.footer is not None
    assert (layout.footer.height, layout.footer.align) == (28, "right")
