"""Columns of rows, by key, in the order in which the keys first occur."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from tidegate.errors import BadTable
from tidegate.exports.rendering.header_tree import Template, leaves
from tidegate.exports.rendering.table import MAX_COLUMNS

ROW_HEAD = "_row_head_"

# A mapping by key, or a `TypedRow`.
Row = Any


def keys_of(rows: Iterable[Row]) -> list[str]:
    """All keys of the rows, in the order of their first occurrence."""
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
    """The value of a key in each row, None in rows without it."""
    getters = getattr(type(rows[0]), "getters", None) if rows else None
    if getters is not None:
        return list(map(getters[key], rows)) if key in getters else [None] * len(rows)
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key) for row in rows]


def flat_rows(data: object, where: str = "data") -> list[dict[str, Any]]:
    """The rows of a list or of `{group: rows}`; with groups, each row gets the name of its group as a key."""
    if isinstance(data, Mapping):
        return [
            {**row, ROW_HEAD: str(group)} for group, rows in data.items() for row in _rows(rows, f"{where}.{group}")
        ]
    return list(_rows(data, where))


def check_rows(rows: Sequence[Row], template: Template, *, excel: bool) -> None:
    """BadTable if the rows cannot be a sheet with this template."""
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


def _rows(data: object, where: str) -> Iterator[dict[str, Any]]:
    if not isinstance(data, list):
        raise BadTable(f'{where} is not a list of rows: write [{{"column": "value"}}, …]')
    for index, row in enumerate(data):
        if not isinstance(row, dict):
            raise BadTable(f'{where}[{index}] is not an object with columns as keys: write {{"column": "value"}}')
        yield row
