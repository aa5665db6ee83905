from __future__ import annotations

from typing import Any

import pytest

from tests.integration.compensation.polling import Ticks
from tests.support.moto.cloud import MotoCloud
from tidegate.app import App
from tidegate.aws import keys
from tidegate.aws.table import update


@pytest.fixture
def ticks(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(cloud, monkeypatch)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the started records of the kind `probe`, which are not due any more once they are started."""
    found: list[str] = []

    def handlers(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            found.append(item["name"])
            app.table.write(update({"pk": item["pk"], "sk": item["sk"]}, removes=keys.DUE_ATTRIBUTES))

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(handlers))
    return found
