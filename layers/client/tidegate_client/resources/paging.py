"""Lists arrive in pages; this walks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from tidegate_client.http import Http
from tidegate_client.models import Page

T = TypeVar("T")


def one_page(http: Http, path: str, query: Mapping[str, Any], limit: int | None, cursor: str | None) -> Page[Any]:
    return cast(Page[Any], http.get(path, {**query, "limit": limit, "cursor": cursor}))


def walk(page: Callable[[str | None], Page[T]], at_most: int | None = None) -> Iterator[T]:
    """Every item of every page, lazily, until `at_most` were given."""
    cursor: str | None = None
    given = 0
    while True:
        answer = page(cursor)
        for item in answer["items"]:
            if at_most is not None and given >= at_most:
                return
            given += 1
            yield item
        cursor = answer.get("next_cursor")
        if not cursor:
            return
