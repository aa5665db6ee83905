"""Every read of the table: whether it may return an earlier state, against a list that was reviewed; and what it costs.

A read that decides something must see the last write. Dropping `consistent=True` changes no result in moto, and on AWS
only for a moment, so tests of behaviour notice it at some reads only (tests/faults). Here each read is listed, in
reads.toml; a new or changed one has to be decided on and entered.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from tidegate.aws.table import Table, delete, put, update

CORE = Path(__file__).resolve().parents[3] / "layers" / "core" / "tidegate"
LISTED = tomllib.loads((Path(__file__).parent / "reads.toml").read_text())
READS = {"get", "query", "query_all", "page", "find", "count", "batch_get", "current"}
# `find` and `current` read the table consistently by themselves, for what an index has listed.
CURRENT = {"find", "current"}


def reads_of(node: ast.AST, within: str) -> Iterator[tuple[str, str]]:
    """(how, where): `consistent`, `eventual`, `index`, or `asked` if the caller says how."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{within}.{child.name}" if "::" in within else f"{within}::{child.name}"
            yield from reads_of(child, inner)
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            given = {keyword.arg: keyword.value for keyword in child.keywords}
            of_table = ast.unparse(child.func.value).rpartition(".")[2] in ("table", "_table")
            if "consistent" in given or (of_table and child.func.attr in READS):
                yield _how(child.func.attr, given), f"{within} {child.func.attr}"
        elif isinstance(child, ast.Dict):
            for key, value in zip(child.keys, child.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "consistent":
                    yield _how("", {"consistent": value}), f"{within} options"
        yield from reads_of(child, within)


def _how(method: str, given: dict[str | None, ast.expr]) -> str:
    consistent = given.get("consistent")
    if consistent is not None:
        return {"True": "consistent", "False": "eventual"}.get(ast.unparse(consistent), "asked")
    if method in CURRENT:
        return "consistent"
    if None in given:
        return "asked"
    return "index" if "index" in given else "eventual"


def test_every_read_is_as_it_was_reviewed() -> None:
    found: dict[str, Counter[str]] = {how: Counter() for how in LISTED}
    for path in sorted(CORE.rglob("*.py")):
        for how, where in reads_of(ast.parse(path.read_text()), str(path.relative_to(CORE))):
            found[how][where] += 1
    listed = {
        how: Counter(dict.fromkeys(entries, 1) if isinstance(entries, dict) else entries)
        for how, entries in LISTED.items()
    }

    assert found == listed, "decide whether the read may be stale, then correct tests/unit/aws/reads.toml"


def test_every_read_that_may_be_stale_has_a_reason() -> None:
    assert [where for where, reason in LISTED["eventual"].items() if len(reason) < 20] == []


KEY = {"pk": "P#1", "sk": "META"}
READ: dict[str, tuple[str, dict[str, Any], Callable[[Table], object]]] = {
    "get": ("get_item", {}, lambda table: table.get(KEY)),
    "query": ("query", {"Items": []}, lambda table: table.query("P#1")),
    "count": ("query", {"Count": 3}, lambda table: table.count("P#1", pages=1)),
    "batch_get": ("batch_get_item", {"Responses": {"t": []}}, lambda table: table.batch_get([KEY])),
}


@pytest.mark.parametrize("name", READ)
def test_read_units_of_every_read_are_counted(name: str) -> None:
    operation, answer, read = READ[name]
    used: Any = {"CapacityUnits": 2.5}
    client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stubber:
        table = Table(client, "t", lambda _: None)
        for _ in range(2):
            stubber.add_response(operation, answer | {"ConsumedCapacity": [used] if name == "batch_get" else used})
            read(table)

    assert table.units_read == 5.0


CONSISTENT: dict[str, tuple[str, dict[str, Any], Callable[[Table, dict[str, Any]], object]]] = {
    "get": ("get_item", {}, lambda table, how: table.get(KEY, **how)),
    "query": ("query", {"Items": []}, lambda table, how: table.query("P#1", **how)),
    "query_all": ("query", {"Items": []}, lambda table, how: list(table.query_all("P#1", **how))),
    "page": ("query", {"Items": []}, lambda table, how: table.page("P#1", limit=3, cursor=None, **how)),
    "count": ("query", {"Count": 3}, lambda table, how: table.count("P#1", pages=1, **how)),
    "batch_get": ("batch_get_item", {"Responses": {"t": []}}, lambda table, how: table.batch_get([KEY], **how)),
}


@pytest.mark.parametrize("how", [{}, {"consistent": False}, {"consistent": True}], ids=str)
@pytest.mark.parametrize("name", CONSISTENT)
def test_read_is_sent_as_consistent_as_it_was_asked_for(name: str, how: dict[str, Any]) -> None:
    operation, answer, read = CONSISTENT[name]
    sent: list[bool] = []
    client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")

    def note(params: dict[str, Any], **_: object) -> None:
        (request,) = params["RequestItems"].values() if name == "batch_get" else (params,)
        sent.append(request.get("ConsistentRead", False))

    client.meta.events.register("provide-client-params.dynamodb", note)
    with Stubber(client) as stubber:
        stubber.add_response(operation, answer)
        read(Table(client, "t", lambda _: None), how)

    assert sent == [how.get("consistent", False)]


def test_record_that_an_index_listed_is_read_as_it_is_now() -> None:
    """An index lags behind: what it lists is read again, with every write that came before."""
    asked: list[dict[str, Any]] = []
    client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    client.meta.events.register("provide-client-params.dynamodb.BatchGetItem", lambda params, **_: asked.append(params))
    with Stubber(client) as stubber:
        stubber.add_response("batch_get_item", {"Responses": {"t": []}})
        Table(client, "t", lambda _: None).current([KEY])

    assert [request["RequestItems"]["t"]["ConsistentRead"] for request in asked] == [True]


WRITE: dict[str, tuple[str, dict[str, Any], Callable[[Table], object]]] = {
    "put": ("put_item", {}, lambda table: table.write(put(KEY))),
    "update": ("update_item", {"Attributes": {}}, lambda table: table.write(update(KEY, {"a": 1}))),
    "delete": ("delete_item", {}, lambda table: table.write(delete(KEY))),
    "transact": ("transact_write_items", {}, lambda table: table.transact([put(KEY), delete({**KEY, "sk": "B"})])),
    "batch_put": ("batch_write_item", {"UnprocessedItems": {}}, lambda table: table.batch_put([KEY])),
}


@pytest.mark.parametrize("name", WRITE)
def test_write_units_of_every_write_are_counted(name: str) -> None:
    operation, answer, write = WRITE[name]
    used: Any = {"CapacityUnits": 3.0}
    client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stubber:
        table = Table(client, "t", lambda _: None)
        many = operation in ("transact_write_items", "batch_write_item")
        stubber.add_response(operation, answer | {"ConsumedCapacity": [used] if many else used})
        write(table)

    assert (table.units_written, table.units_read) == (3.0, 0.0)
