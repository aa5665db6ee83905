"""Base classes of the answers: `Model`, a dict with attributes, and `Page`, a list that fetches its following pages."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Model(dict[str, Any]):
    """A record of the API: a dict whose fields are also attributes. `help()` of a subclass lists the fields."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            declared = _fields(type(self))
            # A field called `items` would hide the method of dict: it is read as `items_`.
            value = self.get(name.removesuffix("_") if name.endswith("_") else name)
            if name not in declared and name not in self:
                raise AttributeError(f"{type(self).__name__} has no field {name}")
            return _shaped(declared.get(name), value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items())})"


@cache
def _fields(kind: type[Model]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _shaped(hint: Any, value: Any) -> Any:
    """Converts a value to its field's declared type; returns a value of another shape unchanged."""
    if value is None or hint is None:
        return Model(value) if type(value) is dict else value
    if get_origin(hint) in (Union, getattr(types, "UnionType", Union)):
        hint = next((one for one in get_args(hint) if one is not type(None)), None)
    if get_origin(hint) is list and isinstance(value, list):
        inner = get_args(hint)[0]
        return [_shaped(inner, one) for one in value]
    if isinstance(hint, type) and issubclass(hint, Model) and isinstance(value, dict):
        return hint(value)
    return value


class Page(Generic[T]):
    """One page of a list: `items` has its records. Iterating also fetches the following pages:

    for file in client.files.list():
        print(file.file_path)
    """

    def __init__(
        self, items: list[T], next_cursor: str | None, following: Callable[[str], Page[T]] | None = None
    ) -> None:
        self.items = items
        self.next_cursor = next_cursor
        self._following = following

    def __iter__(self) -> Iterator[T]:
        page = self
        while True:
            yield from page.items
            if not page.next_cursor or page._following is None:
                return
            page = page._following(page.next_cursor)

    def __len__(self) -> int:
        """Returns the number of items on this page."""
        return len(self.items)

    # The page can also be read like its JSON: page["items"].
    def __getitem__(self, name: str) -> Any:
        return {"items": self.items, "next_cursor": self.next_cursor}[name]

    def get(self, name: str, default: Any = None) -> Any:
        return {"items": self.items, "next_cursor": self.next_cursor}.get(name, default)

    def __repr__(self) -> str:
        return f"Page({len(self.items)} items, next_cursor={self.next_cursor!r})"
