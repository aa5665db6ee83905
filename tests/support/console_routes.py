"""Finds which operations of the API the console calls. `python -m tests.support.console_routes` prints the table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tidegate.web.api import build_api
from tidegate.web.console.bundle import ROOT
from tidegate.web.openapi import contract
from tidegate.web.reference.document import operations_of

_METHODS = {"get": "GET", "post": "POST", "create": "POST", "put": "PUT", "patch": "PATCH", "remove": "DELETE"}
_METHODS["saveFrom"] = "GET"
_CALL = re.compile(r"\b(get|post|create|put|patch|remove|saveFrom)\(\s*([\"`])((?:v1/|\$\{path\})[^\"`]*)[\"`]")
_NAMED = re.compile(r'\bcall\("(\w+)", ([\"`])((?:v1/|\$\{path\})[^"`]*)[\"`]')
# A path in a constant, which calls use as it is or extend.
_CONSTANT = re.compile(r"const path = `(v1/[^`]*)`")
_BARE = re.compile(r"\b(get|patch|remove|put)\(path\b")
_HOLE = re.compile(r"\$\{[^}]*\}")


@cache
def table() -> dict[str, dict[str, str]]:
    """Returns `does` and `does_not` (text by operation) and `without` (reason by field of an operation)."""
    found: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return found


@cache
def operations() -> dict[str, Any]:
    return {f"{method.upper()} {path}": found for method, path, found in operations_of(contract(build_api()))}


@cache
def scripts() -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in (ROOT / "js").rglob("*.js") if path.parent.name != "words"}


@cache
def calls() -> list[tuple[str, str, str]]:
    """Returns file, method and path of every call in the console's code; `{}` stands for an inserted value."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, str, str]]:
    # A dialog may get its path from the view that opens it.
    anywhere = [begin for text in scripts().values() for begin in _CONSTANT.findall(text)]
    for name, text in scripts().items():
        begins = _CONSTANT.findall(text)
        for match in [*_CALL.finditer(text), *_NAMED.finditer(text)]:
            method = _METHODS.get(match[1], match[1])
            if "${path}" not in match[3]:
                yield name, method, _plain(match[3])
            for begin in (begins or anywhere) if "${path}" in match[3] else []:
                whole = _plain(match[3].replace("${path}", begin))
                if begins or any(matches(known, method, whole) for known in operations()):
                    yield name, method, whole
        for match in _BARE.finditer(text):
            yield from ((name, _METHODS[match[1]], _plain(begin)) for begin in begins)
        if name == "palette.js":
            yield from ((name, "GET", path) for path in re.findall(r'\["\w+", "(v1/[\w/-]+)"', text))


def _plain(path: str) -> str:
    return _HOLE.sub("{}", path)


def matches(operation: str, method: str, path: str) -> bool:
    """Whether a call is of this operation; `{}` in its path stands for any one part."""
    operation_method, _, route = operation.partition(" ")
    route_parts, path_parts = route.strip("/").split("/"), path.strip("/").split("/")
    same_path = len(route_parts) == len(path_parts) and all(
        expected == part or part == "{}" or (expected.startswith("{") and not part.isalpha())
        for expected, part in zip(route_parts, path_parts, strict=True)
    )
    return operation_method == method and same_path


def called(operation: str) -> list[str]:
    """Returns the scripts that call the operation. A last part chosen at run time must be named in the script."""
    last = operation.rpartition("/")[2]
    callers = []
    for name, method, path in calls():
        chosen = path.endswith("/{}") and not last.startswith("{")
        if matches(operation, method, path) and (not chosen or f'"{last}"' in scripts()[name]):
            callers.append(name)
    return callers


def operation_of(method: str, path: str) -> str | None:
    """Returns the operation of a call; a route without parameters is preferred to one with."""
    parts = path.strip("/").split("/")
    for name in sorted(operations(), key=lambda name: name.count("{")):
        operation_method, _, route = name.partition(" ")
        route_parts = route.strip("/").split("/")
        same_path = all(
            expected == unquote(part) or expected.startswith("{")
            for expected, part in zip(route_parts, parts, strict=False)
        )
        if operation_method == method and len(route_parts) == len(parts) and same_path:
            return name
    return None


def never_called(calls_made: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the console's operations that are not among these calls (method and path)."""
    return sorted(set(table()["does"]) - {operation_of(method, path) for method, path in calls_made})


def related(operation: str) -> str:
    """Returns the text of the scripts that call the operation and of those they import, where its body is made."""
    pending, texts = called(operation), {}
    while pending:
        name = pending.pop()
        if name in scripts() and name not in texts:
            texts[name] = scripts()[name]
            pending += [path.rpartition("/")[2] for path in re.findall(r'from "([^"]+)"', texts[name])]
    return "\n".join(texts.values())


def sends(text: str, name: str) -> bool:
    """Whether a script uses a field: as a key, in quotes or in an assignment, not only as a word in its text."""
    return re.search(rf'["`]{name}["`]|[{{,]\s*{name}\s*[:,}}]|\b{name}: |\.{name} = ', text) is not None


def fields(operation: str) -> list[str]:
    body = operations()[operation].get("requestBody", {}).get("content", {}).get("application/json", {})
    return sorted(_properties(body.get("schema", {})))


def _properties(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        schema = contract_schemas()[schema["$ref"].rpartition("/")[2]]
    names = set(schema.get("properties", {}))
    return names.union(*(_properties(each) for how in ("allOf", "anyOf", "oneOf") for each in schema.get(how, [])))


@cache
def contract_schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = contract(build_api())["components"]["schemas"]
    return schemas


def printed() -> str:
    rows = ["| operation | where the console does it, or why not |", "| --- | --- |"]
    does, does_not = table()["does"], table()["does_not"]
    rows += [f"| `{name}` | {does.get(name) or 'not: ' + does_not[name]} |" for name in operations()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(printed())
