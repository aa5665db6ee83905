"""The client uses nothing newer than Python 3.9; tests/build/test_old_python.py runs it there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[3] / "layers/client/tidegate_client").rglob("*.py"))
# Arguments that are newer than 3.9, which neither the parser nor mypy notices.
NEWER = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}, "field": {"kw_only"}}


def newer_than_3_9(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source, feature_version=(3, 9))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for keyword in node.keywords:
                if keyword.arg in NEWER.get(node.func.id, ()):
                    yield f"line {node.lineno}: {node.func.id}({keyword.arg}=…) needs Python 3.10"
            if node.func.id == "isinstance" and isinstance(node.args[1], ast.BinOp):
                yield f"line {node.lineno}: isinstance(…, X | Y) needs Python 3.10; write a tuple"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_client_uses_nothing_newer_than_python_3_9(path: Path) -> None:
    assert list(newer_than_3_9(path.read_text())) == []


def test_newer_arguments_and_statements_are_noticed() -> None:
    assert len(list(newer_than_3_9("zip(a, b, strict=True)\nisinstance(a, int | str)\n"))) == 2
    with pytest.raises(SyntaxError):
        list(newer_than_3_9("match a:\n    case 1:\n        pass\n"))
