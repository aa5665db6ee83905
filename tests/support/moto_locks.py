"""DynamoDB changes an item at once; moto checks a condition, then writes piece by piece, and other threads see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from moto.dynamodb.models import DynamoDBBackend

_CALLS = ("get_item", "query", "put_item", "update_item", "delete_item", "transact_write_items")


@contextmanager
def atomic_writes() -> Iterator[None]:
    lock = threading.RLock()

    def alone(call: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return call(*args, **kwargs)

        return made

    with ExitStack() as patches:
        for name in _CALLS:
            patches.enter_context(patch.object(DynamoDBBackend, name, alone(getattr(DynamoDBBackend, name))))
        yield
