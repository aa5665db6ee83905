"""Writes as values: stores build them, and the table performs one alone or several in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.aws.serialization import Key, can_be_stored, to_wire, to_wire_value
from tidegate.errors import Invalid


@dataclass(frozen=True, slots=True)
class Write:
    """One write, alone or in a transaction.

    `sets` are new values, `adds` are numbers or sets to add, `takes` are members to remove from sets, `removes` are
    attribute names. `condition` uses `#name` for an attribute and `:name` for an entry of `values`.
    """

    kind: str
    key: Key
    item: Mapping[str, Any] | None = None
    sets: Mapping[str, Any] | None = None
    adds: Mapping[str, int | set[str]] | None = None
    takes: Mapping[str, set[str]] | None = None
    removes: Sequence[str] = ()
    condition: str = ""
    values: Mapping[str, Any] | None = None


def put(item: Mapping[str, Any], condition: str = "", **values: Any) -> Write:
    return Write("Put", {"pk": item["pk"], "sk": item["sk"]}, item=item, condition=condition, values=values)


def put_new(item: Mapping[str, Any]) -> Write:
    """Puts the item; refused if one with its key exists."""
    return put(item, "attribute_not_exists(#pk)")


def update(
    key: Key,
    sets: Mapping[str, Any] | None = None,
    *,
    adds: Mapping[str, int | set[str]] | None = None,
    takes: Mapping[str, set[str]] | None = None,
    removes: Sequence[str] = (),
    condition: str = "attribute_exists(#pk)",
    **values: Any,
) -> Write:
    """Updates an item that exists; with `condition=""`, creates it if it does not. A value of None is not written."""
    return Write("Update", key, sets=sets, adds=adds, takes=takes, removes=removes, condition=condition, values=values)


def delete(key: Key, condition: str = "", **values: Any) -> Write:
    return Write("Delete", key, condition=condition, values=values)


def check(key: Key, condition: str, **values: Any) -> Write:
    """Writes nothing, but the whole transaction is refused if the condition is not met."""
    return Write("ConditionCheck", key, condition=condition, values=values)


def names_in(expression: str) -> dict[str, str]:
    """The attribute names in an expression, such as {"#state": "state"}."""
    words = "".join(char if char.isalnum() or char in "_#" else " " for char in expression).split()
    return {word: word[1:] for word in words if word.startswith("#")}


def as_request(table: str, write: Write) -> dict[str, Any]:
    """The parameters of the DynamoDB call, or of the transaction's entry. Invalid if the key cannot be stored."""
    if not can_be_stored(*write.key.values()):
        raise Invalid(
            "an id or a name in the request is too long to be stored, or is not valid UTF-8: send another one"
        )
    names = names_in(write.condition)
    values = {f":{name}": to_wire_value(value) for name, value in (write.values or {}).items()}
    request: dict[str, Any] = {"TableName": table}
    if write.kind == "Put":
        request["Item"] = to_wire(write.item or {})
    else:
        request["Key"] = to_wire(write.key)
    if write.kind == "Update":
        sets = {name: value for name, value in (write.sets or {}).items() if value is not None}
        clauses = []
        if sets:
            clauses.append("SET " + ", ".join(f"#{name} = :set_{name}" for name in sets))
        if write.adds:
            clauses.append("ADD " + ", ".join(f"#{name} :add_{name}" for name in write.adds))
        if write.takes:
            clauses.append("DELETE " + ", ".join(f"#{name} :take_{name}" for name in write.takes))
        if write.removes:
            clauses.append("REMOVE " + ", ".join(f"#{name}" for name in write.removes))
        request["UpdateExpression"] = " ".join(clauses)
        changed = (*sets, *(write.adds or ()), *(write.takes or ()), *write.removes)
        names |= {f"#{name}": name for name in changed}
        values |= {f":set_{name}": to_wire_value(value) for name, value in sets.items()}
        values |= {f":add_{name}": to_wire_value(value) for name, value in (write.adds or {}).items()}
        values |= {f":take_{name}": to_wire_value(value) for name, value in (write.takes or {}).items()}
    if write.condition:
        request["ConditionExpression"] = write.condition
    if names:
        request["ExpressionAttributeNames"] = names
    if values:
        request["ExpressionAttributeValues"] = values
    return request


def below(count: str, bound: str, *, allows_none: bool) -> str:
    """The condition that a count is below a bound. `allows_none`: whether a count that does not exist yet passes."""
    return f"attribute_not_exists(#{count}) OR #{count} < :{bound}" if allows_none else f"#{count} < :{bound}"
