"""Counts the AWS calls that the product makes, by a botocore event hook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.app import App

SERVICES = ("dynamodb", "s3", "sqs", "sns", "sfn", "secretsmanager", "ssm")


@contextmanager
def count_calls(app: App) -> Iterator[Counter[str]]:
    """Yields a Counter, `{"dynamodb.Query": 1, …}`, of the calls of the App's clients inside the block."""
    calls: Counter[str] = Counter()

    def count(model: Any, **_: Any) -> None:
        calls[f"{model.service_model.service_name}.{model.name}"] += 1

    clients = [getattr(app, name) for name in SERVICES]
    for client in clients:
        client.meta.events.register("before-call", count)
    try:
        yield calls
    finally:
        for client in clients:
            client.meta.events.unregister("before-call", count)
