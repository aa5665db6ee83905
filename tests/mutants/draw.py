"""Draws random mutants: small changes of decisions in functions of the core, the agent and the swarm.

Not drawn, because they change nothing: `attribute_exists(#pk)` beside a comparison, which fails without the item, too;
the order of two calls of which both only change an object in memory, or only refuse; calls that log or measure.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tests.mutants.tree import ROOT

FOLDERS = ("layers/core/tidegate", "layers/client/tidegate_client/agent", "layers/client/tidegate_client/swarm")
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
# A text that is a condition of DynamoDB, or a part of one.
_CONDITION = re.compile(r"attribute_(?:not_)?exists\(|#\w+ (?:=|<>|<|>|<=|>=) :\w+|contains\(#\w+|begins_with\(#\w+")
_ALWAYS = " OR attribute_exists(#pk) OR attribute_not_exists(#pk))"
_CURSORS = re.compile(r"cursor|after|since|start_key|exclusive_start|next_(?:key|page|cursor|token|url)|token")
# A part that fails for an item that does not exist, because it compares an attribute.
_COMPARES = re.compile(r"#\w+ (?:=|<>|<|>|<=|>=) :\w+")
# Calls that change only an object in memory, and calls that only refuse: in which order two of them come shows at most
# in which of two errors is told first.
_IN_MEMORY = {
    "append",
    "appendleft",
    "extend",
    "add",
    "update",
    "discard",
    "setdefault",
    "pop",
    "clear",
    "set",
    "pulse",
}
_REFUSES = re.compile(r"_?(?:check|require|refuse|validate|verify)\w*")
# Removing these changes no decision.
_SAYS_ONLY = {"log", "logger", "_log", "_logger", "logging", "LOG", "metrics", "_metrics", "print", "warnings"}
Span = tuple[int, int]


@dataclass(frozen=True)
class Drawn:
    """A mutant: in `file`, the text at `span` becomes `new`."""

    kind: str
    file: str
    function: str
    line: int
    span: Span
    old: str
    new: str
    # Of those in the function that have the same texts.
    nth: int = 1

    @property
    def name(self) -> str:
        """The same after edits elsewhere in the file."""
        which = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.kind} {self.file}::{self.function} {_short(self.old)} -> {_short(self.new)}{which}"

    def applied(self, source: str) -> str:
        return source[: self.span[0]] + self.new + source[self.span[1] :]

    def diff(self, root: Path = ROOT) -> str:
        source = (root / self.file).read_text()
        lines = difflib.unified_diff(source.splitlines(), self.applied(source).splitlines(), lineterm="", n=1)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def _short(text: str) -> str:
    return " ".join(text.split())


def draw(count: int, seed: int, root: Path = ROOT, only: Sequence[str] = ()) -> list[Drawn]:
    """`count` mutants, as many of each kind as there are; the same ones for the same seed and source.

    `only`: in files whose path begins with one of these.
    """
    chance = random.Random(seed)
    by_kind: dict[str, list[Drawn]] = defaultdict(list)
    for one in candidates(root, only):
        by_kind[one.kind].append(one)
    for drawn in by_kind.values():
        chance.shuffle(drawn)
    kinds = sorted(by_kind)
    chance.shuffle(kinds)
    chosen: list[Drawn] = []
    while len(chosen) < count and any(by_kind.values()):
        for kind in kinds:
            made = by_kind[kind].pop() if by_kind[kind] else None
            if made is not None and len(chosen) < count and _compiles(made.applied((root / made.file).read_text())):
                chosen.append(made)
    return chosen


def candidates(root: Path = ROOT, only: Sequence[str] = ()) -> Iterator[Drawn]:
    """Every mutant that can be drawn."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = str(path.relative_to(root))
            if not only or name.startswith(tuple(only)):
                yield from _of_file(path, name)


def _of_file(path: Path, name: str) -> Iterator[Drawn]:
    source = path.read_text()
    text = _Text(source)
    seen: set[tuple[Span, str]] = set()
    named: Counter[str] = Counter()
    for function, node in _functions(ast.parse(source)):
        for kind, maker in _KINDS.items():
            for at, span, new in maker(node, text):
                old = source[slice(*span)]
                made = Drawn(kind, name, function, at, span, old, new)
                if new != old and (span, new) not in seen:
                    seen.add((span, new))
                    named[made.name] += 1
                    yield replace(made, nth=named[made.name])


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Text:
    """Offsets of nodes in a source; the syntax tree counts columns in bytes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.source[slice(*self.span(node))]

    def _at(self, line: int, column: int) -> int:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(text.encode()[:column].decode())


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods with their names; nested functions belong to the outer one."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name not in {"__repr__", "__str__"} and not _is_abstract(node):
                    yield f"{prefix}{node.name}", node
            elif isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from inside(node.body, f"{prefix}{node.name}.")

    return inside(tree.body, "")


def _is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("overload" in ast.unparse(each) or "abstract" in ast.unparse(each) for each in node.decorator_list)


_Made = Iterator[tuple[int, Span, str]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=4)
def _body(function: _Function) -> Sequence[ast.AST]:
    """Each kind of mutant looks through the same nodes."""
    return [node for statement in function.body for node in ast.walk(statement)]


@lru_cache(maxsize=4)
def _decisions(function: _Function) -> Sequence[ast.AST]:
    """Nodes of the body but those of texts for people: what is raised, and values within f-strings."""
    said = {
        id(inner)
        for node in _body(function)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)
        for inner in ast.walk(node)
    }
    return [node for node in _body(function) if id(node) not in said]


def _conditions(function: _Function, text: _Text) -> _Made:
    """A part of a write's condition is always true."""
    expressions = {"KeyConditionExpression", "FilterExpression"}
    keys = {
        id(value)
        for node in _body(function)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in expressions
    }
    inner = {id(part) for node in _body(function) if isinstance(node, ast.JoinedStr) for part in node.values}
    documents = {id(node.value) for node in _body(function) if isinstance(node, ast.Expr)}
    for node in _body(function):
        if id(node) in keys or id(node) in inner or id(node) in documents:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CONDITION.search(node.value):
            parts = re.split(r" AND (?![^(]*\))", node.value)
            for number, part in enumerate(parts):
                # A text that is added to another one begins with AND.
                if not part.strip() or "BETWEEN" in part or part.count("(") != part.count(")"):
                    continue
                others = (other for at, other in enumerate(parts) if at != number and " OR " not in other)
                if part.strip() == "attribute_exists(#pk)" and any(map(_COMPARES.fullmatch, others)):
                    continue
                changed = [*parts[:number], f"({part.strip()}{_ALWAYS}", *parts[number + 1 :]]
                yield node.lineno, text.span(node), repr(" AND ".join(changed))
        elif isinstance(node, ast.JoinedStr) and _CONDITION.search(text.of(node)):
            raw = text.of(node)
            if found := re.fullmatch(r"""([a-z]+)(["'])(.*)\2""", raw, re.DOTALL):
                made = f"{found[1]}{found[2]}({found[3]}{_ALWAYS}{found[2]}"
                yield node.lineno, text.span(node), made


def _consistency(function: _Function, text: _Text) -> _Made:
    """A read that must see the latest write may see an older one."""
    for node in _body(function):
        if not isinstance(node, ast.keyword) or node.arg not in {"consistent", "ConsistentRead"}:
            continue
        if isinstance(node.value, ast.Constant) and node.value.value is True:
            yield node.value.lineno, text.span(node.value), "False"


def _comparisons(function: _Function, text: _Text) -> _Made:
    for node in _decisions(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and not _is_none(node.comparators[0]):
            inner = (text.span(node.left)[1], text.span(node.comparators[0])[0])
            between = text.source[slice(*inner)]
            if found := re.search(r"not in|is not|[<>=!]=|[<>]|\bin\b|\bis\b", between):
                new = between[: found.start()] + _COMPARED[type(node.ops[0])] + between[found.end() :]
                yield node.lineno, inner, new


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _bounds(function: _Function, text: _Text) -> _Made:
    """A number beside a comparison, of a slice, or added to another, is one too large."""
    for node in _decisions(function):
        numbers: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            numbers = [node.left, *node.comparators]
        elif isinstance(node, ast.Slice):
            numbers = [each for each in (node.lower, node.upper) if each is not None]
            for name in (each for each in numbers if isinstance(each, ast.Name | ast.Attribute)):
                yield name.lineno, text.span(name), f"{text.of(name)} + 1"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            numbers = [node.left, node.right]
        for number in numbers:
            if isinstance(number, ast.Constant) and type(number.value) is int:
                yield number.lineno, text.span(number), str(number.value + 1)


def _operands(function: _Function, text: _Text) -> _Made:
    """One side of `and` or `or`, or a `not`, is missing."""
    for node in _decisions(function):
        if isinstance(node, ast.BoolOp):
            for dropped in node.values:
                kept = [f"({text.of(each)})" for each in node.values if each is not dropped]
                word = " and " if isinstance(node.op, ast.And) else " or "
                yield dropped.lineno, text.span(node), f"({word.join(kept)})"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.lineno, text.span(node), f"bool({text.of(node.operand)})"


def _says_only(call: ast.Call) -> bool:
    root: ast.expr = call.func
    names = set()
    while isinstance(root, ast.Attribute):
        names.add(root.attr)
        root = root.value
    if isinstance(root, ast.Name):
        names.add(root.id)
    return bool(names & _SAYS_ONLY) or "super()" in ast.unparse(call.func)


def _calls(function: _Function, text: _Text) -> _Made:
    """A statement that only calls something is missing."""
    for node in _body(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _says_only(node.value):
            yield node.lineno, text.span(node), "pass"


def _blocks(function: _Function) -> Iterator[list[ast.stmt]]:
    yield function.body
    for node in _body(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _acts(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not _says_only(value)


def _order_is_equal(first: ast.stmt, second: ast.stmt) -> bool:
    called = [each.value.func for each in (first, second) if isinstance(each, ast.Expr | ast.Assign)
              and isinstance(each.value, ast.Call) and isinstance(each.value.func, ast.Attribute)]  # fmt: skip
    if len(called) < 2 or ast.unparse(called[0].value) == ast.unparse(called[1].value):
        return False
    names = [each.attr for each in called]
    return all(name in _IN_MEMORY for name in names) or all(map(_REFUSES.fullmatch, names))


def _order(function: _Function, text: _Text) -> _Made:
    """Two statements that act, the second without a value of the first, in the other order."""
    for block in _blocks(function):
        for first, second in itertools.pairwise(block):
            if not (_acts(first) and _acts(second) and (isinstance(first, ast.Expr) or isinstance(second, ast.Expr))):
                continue
            stored = {n.id for n in ast.walk(first) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            used = {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}
            later = {n.id for n in ast.walk(second) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            before = {n.id for n in ast.walk(first) if isinstance(n, ast.Name)}
            if stored & used or later & before or _order_is_equal(first, second):
                continue
            one, two = text.span(first), text.span(second)
            between = text.source[one[1] : two[0]]
            yield first.lineno, (one[0], two[1]), text.of(second) + between + text.of(first)


def _cursors(function: _Function, text: _Text) -> _Made:
    """The next page is asked for without saying where it begins."""
    for node in _body(function):
        if not isinstance(node, ast.keyword) or not _CURSORS.fullmatch(node.arg or ""):
            continue
        if not isinstance(node.value, ast.Constant):
            yield node.value.lineno, text.span(node.value), "None"


def _extremes(function: _Function, text: _Text) -> _Made:
    for node in _decisions(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
            other = "max" if node.func.id == "min" else "min"
            yield node.lineno, text.span(node.func), other
            if len(node.args) == 2 and not node.keywords:
                for kept in node.args:
                    if not isinstance(kept, ast.Starred):
                        yield node.lineno, text.span(node), f"({text.of(kept)})"


def _early_returns(function: _Function, text: _Text) -> _Made:
    """`if …: return`, `raise`, `continue` or `break` is never taken."""
    for node in _body(function):
        if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1:
            continue
        if isinstance(node.body[0], ast.Return | ast.Raise | ast.Continue | ast.Break):
            # A name that the condition binds is used further down.
            binds = any(isinstance(each, ast.NamedExpr) for each in ast.walk(node.test))
            yield node.lineno, text.span(node.test), f"({text.of(node.test)}) and False" if binds else "False"


_KINDS: dict[str, Callable[[_Function, _Text], _Made]] = {
    "condition": _conditions,
    "consistent": _consistency,
    "compare": _comparisons,
    "bound": _bounds,
    "operand": _operands,
    "call": _calls,
    "order": _order,
    "cursor": _cursors,
    "min-max": _extremes,
    "early-return": _early_returns,
}
