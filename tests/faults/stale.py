"""Earlier states of the table, which eventually consistent reads may return."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType

from tests.support.clock import Clock
from tests.support.moto.dynamodb import LOCK

_SETTLED_SECONDS = 1.0


class Written(NamedTuple):
    at: float
    place: dict[Any, Any]
    key: Any
    before: Any

    @property
    def item(self) -> tuple[int, Any]:
        return id(self.place), self.key


@dataclass
class Journal:
    """Every write of the functions, with the item as it was before."""

    clock: Clock
    counting: Callable[[], bool]
    written: list[Written] = field(default_factory=list)

    @contextmanager
    def kept(self) -> Iterator[None]:
        with (
            patch.object(DynamoDBBackend, "put_item", self._noted(DynamoDBBackend.put_item)),
            patch.object(DynamoDBBackend, "update_item", self._noted(DynamoDBBackend.update_item)),
            patch.object(DynamoDBBackend, "delete_item", self._noted(DynamoDBBackend.delete_item)),
        ):
            yield

    def _noted(self, call: Any) -> Any:
        def noted(backend: DynamoDBBackend, table_name: str, key: dict[str, Any], *args: Any, **more: Any) -> Any:
            if not self.counting():
                return call(backend, table_name, key, *args, **more)
            with LOCK:
                place = backend.get_table(table_name).items[DynamoType(key["pk"])]
                sk = DynamoType(key["sk"])
                entry = Written(self.clock().timestamp(), place, sk, copy.deepcopy(place.get(sk)))
                answer = call(backend, table_name, key, *args, **more)
                self.written.append(entry)
                return answer

        def by_name(backend: DynamoDBBackend, *args: Any, **more: Any) -> Any:
            """moto's callers pass the key by position, or as `item_attrs` or `key`."""
            named = [more.pop(name) for name in ("table_name", "item_attrs", "key") if name in more]
            return noted(backend, *args, *named, **more)

        return by_name

    @contextmanager
    def before_last_second(self) -> Iterator[None]:
        since = self.clock().timestamp() - _SETTLED_SECONDS
        with self._as_before([one for one in self.written if one.at > since]):
            yield

    @contextmanager
    def before_last_write(self) -> Iterator[None]:
        """Each item as it was before its last write, if that was within the last second."""
        since = self.clock().timestamp() - _SETTLED_SECONDS
        last = {one.item: one for one in self.written if one.at > since}
        with self._as_before(list(last.values())):
            yield

    @contextmanager
    def _as_before(self, undone: list[Written]) -> Iterator[None]:
        with LOCK:
            now = {one.item: (one.place, one.key, one.place.get(one.key)) for one in undone}
            for one in reversed(undone):
                _put(one.place, one.key, one.before)
            try:
                yield
            finally:
                for place, key, item in now.values():
                    _put(place, key, item)


def _put(place: dict[Any, Any], key: Any, item: Any) -> None:
    if item is None:
        place.pop(key, None)
    else:
        place[key] = item
