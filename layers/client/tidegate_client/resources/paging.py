"""Base class of the API's resources, which reads lists page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from tidegate_client.errors import BadAnswer
from tidegate_client.http import Http
from tidegate_client.model import Model, Page

T = TypeVar("T", bound=Model)
Item = TypeVar("Item")


class Resource:
    """Base class for a part of the API, such as `client.files`. All parts share the client's connections."""

    def __init__(self, http: Http) -> None:
        self._http = http

    @overload
    def _page(self, path: str, query: Mapping[str, Any], limit: int | None, cursor: str | None) -> Page[Any]: ...
    @overload
    def _page(
        self, path: str, query: Mapping[str, Any], limit: int | None, cursor: str | None, kind: type[T]
    ) -> Page[T]: ...
    def _page(
        self, path: str, query: Mapping[str, Any], limit: int | None, cursor: str | None, kind: type[Model] = Model
    ) -> Page[Any]:
        """Fetches one page as a `Page` of `kind`, which can fetch the page after it."""
        answer = self._http.get(path, {**query, "limit": limit, "cursor": cursor})
        if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
            raise BadAnswer(f"the answer to GET {path} is not a list: check that the address is that of the API")
        items = [kind(item) if isinstance(item, dict) else item for item in answer["items"]]
        return Page(items, answer.get("next_cursor"), lambda following: self._page(path, query, limit, following, kind))


def walk(page: Callable[[str | None], Page[Item]], at_most: int | None = None) -> Iterator[Item]:
    """Yields the items of all pages, at most `at_most` items. A page is fetched when its first item is needed."""
    cursor: str | None = None
    yielded = 0
    while True:
        answer = page(cursor)
        for item in answer["items"]:
            if at_most is not None and yielded >= at_most:
                return
            yielded += 1
            yield item
        cursor = answer.get("next_cursor")
        if not cursor:
            return
