"""Counts what a newcomer meets in the product: modules, lines, corridors, words with two meanings."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE, CLIENT = ROOT / "layers/core/tidegate", ROOT / "layers/client/tidegate_client"


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def code_lines(self) -> int:
        """The lines without docstrings, which nobody is to write shorter than is plain."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = (
            node.body[0]
            for node in ast.walk(self.tree)
            if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        )
        return self.lines - sum((text.end_lineno or text.lineno) - text.lineno + 1 for text in texts)

    @property
    def is_core(self) -> bool:
        return self.path.is_relative_to(CORE)


def modules() -> list[Module]:
    found = []
    for base in (CORE, CLIENT):
        for path in sorted(base.rglob("*.py")):
            text = path.read_text()
            parts = list(path.relative_to(base.parent).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, ast.parse(text), text.count("\n")))
    return found


def routes(found: Iterable[Module]) -> int:
    """How many routes are declared, by `@router.get` and the like."""
    methods = {"get", "post", "put", "patch", "delete"}
    decorators = (
        decorator.func
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
    )
    named = (each for each in decorators if isinstance(each, ast.Attribute) and each.attr in methods)
    return sum(isinstance(each.value, ast.Name) and each.value.id == "router" for each in named)


def imports(module: Module, names: set[str], *, at_start: bool = False) -> Iterator[str]:
    """Yields the product modules that a module imports; `at_start`, only those imported together with it."""
    nodes: Iterable[ast.AST] = module.tree.body if at_start else ast.walk(module.tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def with_one_importer(found: list[Module]) -> list[Module]:
    """Returns core modules that only one other uses, besides the wiring: they may belong to their one user."""
    names = {module.name for module in found}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in found:
        for name in imports(module, names):
            if name in names and not module.name.startswith("tidegate.app"):
                importers[name].add(module.name)
    return [each for each in found if each.is_core and each.tree.body and len(importers[each.name]) == 1]


def _only_assigns(function: ast.FunctionDef) -> bool:
    body = [node for node in function.body if not _is_text(node)]
    return bool(body) and all(isinstance(node, ast.Assign | ast.AnnAssign) for node in body)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_function_in_disguise(node: ast.ClassDef) -> bool:
    """A class whose constructor only assigns and that has one public method could be a function."""
    if node.bases or node.decorator_list:
        return False
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    public = [name for name in methods if not name.startswith("_")]
    constructor = methods.get("__init__")
    special = any(name.startswith("__") and name != "__init__" for name in methods)
    return len(public) == 1 and constructor is not None and _only_assigns(constructor) and not special


def functions_in_disguise(found: list[Module]) -> list[str]:
    return [
        f"{module.name}.{node.name}"
        for module in found
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and is_function_in_disguise(node)
    ]


def names_with_two_meanings(found: list[Module]) -> list[str]:
    """Returns the public classes of the core that are defined more than once."""
    classes = Counter(
        node.name
        for module in found
        if module.is_core
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, times in classes.items() if times > 1)


def long_test_names(most_words: int = 12) -> list[str]:
    """Returns the tests whose names have more words than that: a name says the situation and the result."""
    return sorted(
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name.count("_") > most_words
    )


def cycles_between_packages(found: list[Module]) -> list[str]:
    """Returns the pairs of the client's packages that import each other."""
    names = {module.name for module in found}
    edges: set[tuple[str, str]] = set()
    for module in found:
        if not module.is_core:
            own = ".".join(module.name.split(".")[:2])
            for name in imports(module, names, at_start=True):
                other = ".".join(name.split(".")[:2])
                if name in names and other != own and own != "tidegate_client" != other:
                    edges.add((own, other))
    return sorted(f"{one} and {other}" for one, other in edges if one < other and (other, one) in edges)
