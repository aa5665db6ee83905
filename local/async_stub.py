"""Generates layers/client/tidegate_client/async_client.pyi, the types of `AsyncClient`, from those of `Client`.

`python -m local.async_stub [check]`. A test checks that the file is up to date."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from local.place import ROOT
from local.sdk_models import formatted
from tidegate_client import async_client
from tidegate_client.client import Client

STUB = ROOT / "layers" / "client" / "tidegate_client" / "async_client.pyi"
_HEAD = '''"""Made by `python -m local.async_stub` from the types of `Client`; not to be changed by hand."""

'''
_OWN = """
T = TypeVar("T")

class AsyncPage(Generic[T]):
    items: list[T]
    next_cursor: str | None
    def __init__(self, page: Page[T]) -> None: ...
    def __len__(self) -> int: ...
    def __aiter__(self) -> AsyncIterator[T]: ...

def resources_of(client: Client) -> dict[str, object]: ...
def methods_of(kind: type) -> dict[str, Callable[..., Any]]: ...
"""
_CLIENT = """
class AsyncClient:
    sync: Client
{parts}
    def __init__(
        self,
        api_url: str | None = ...,
        key: str | None = ...,
        *,
        profile: str | None = ...,
        project_id: str | None = ...,
        timeout: float = ...,
        attempts: int = ...,
        backoff: float = ...,
        pool: urllib3.PoolManager | None = ...,
    ) -> None: ...
    def all(self, page: AsyncPage[T] | Awaitable[AsyncPage[T]]) -> AsyncIterator[T]: ...
    def watch(self, *record_ids: str, timeout: float | None = ...) -> AsyncIterator[Change]: ...
    async def wait(self, record_id: str, *, timeout: float | None = ...) -> Change: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
"""
_IMPORTS = {
    "collections.abc": {"AsyncIterator", "Awaitable", "Callable"},
    "types": {"TracebackType"},
    "typing": {"Any", "Generic", "TypeVar"},
    # Type checkers know it for every version of Python.
    "typing_extensions": {"Self"},
    "tidegate_client.client": {"Client"},
    "tidegate_client.model": {"Page"},
    "tidegate_client.records": {"Change"},
}


def text() -> str:
    """Returns the source of the stub file."""
    parts = async_client.resources_of(Client("http://127.0.0.1", "key"))
    imports = {module: set(names) for module, names in _IMPORTS.items()}
    classes = [_class(type(part), imports) for part in parts.values()]
    fields = "\n".join(f"    {name}: Async{type(part).__name__}" for name, part in parts.items())
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imports.items())]
    sections = [_HEAD + "\n".join([*lines, "import urllib3"]), _OWN, *classes, _CLIENT.format(parts=fields)]
    return formatted("\n".join(sections), STUB)


def _class(kind: type, imports: dict[str, set[str]]) -> str:
    module = sys.modules[kind.__module__]
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    for method in methods:
        for name in _names(method):
            _note(name, module, imports)
    return f"class Async{kind.__name__}:\n" + "\n".join(f"    {_signature(method)}" for method in methods)


def _signature(method: ast.FunctionDef) -> str:
    arguments = method.args
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [ast.Constant(...) if default else None for default in arguments.kw_defaults]
    returns = ast.unparse(method.returns) if method.returns else "None"
    if returns.startswith("Page["):
        returns = f"Async{returns}"
    return f"async def {method.name}({ast.unparse(arguments)}) -> {returns}: ..."


def _names(method: ast.FunctionDef) -> Iterator[str]:
    arguments = method.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for annotation in (*(argument.annotation for argument in every if argument), method.returns):
        for node in ast.walk(annotation) if annotation else ():
            if isinstance(node, ast.Name):
                yield node.id


def _note(name: str, module: ModuleType, imports: dict[str, set[str]]) -> None:
    annotation: Any = getattr(module, name, None)
    # A type alias has no module of its own, and a name for type checkers only has no value: import it from where this
    # module imports it.
    home = getattr(annotation, "__module__", None) if isinstance(annotation, type) else _home_of_alias(name, module)
    if home and home != "builtins":
        imports.setdefault(home.replace("pathlib._local", "pathlib"), set()).add(name)


def _home_of_alias(name: str, module: ModuleType) -> str | None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module
    return None


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(0 if STUB.read_text() == text() else "async_client.pyi is outdated: run python -m local.async_stub")
    STUB.write_text(text())
