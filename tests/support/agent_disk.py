"""The releases of one host on a real disk, over several lives of its agent; the API's answers are given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from tests.unit.client.fakes import ME, sha256
from tidegate_client.agent.delivery import Delivery
from tidegate_client.agent.disk import Fence, Partials
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.releases import Hook, HostReleases


def file_of(content: bytes, name: str = "app.conf", **more: Any) -> dict[str, Any]:
    fields = {"file_name": name, "target_file_dir": "/data", "target_user": ME, "mode": "0640"}
    return fields | {"signature": sha256(content), "size": len(content)} | more


def goal_of(revision: int, *files: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {"name": "app", "revision": revision, "hold": False, "keep": 2, "heal": False}
    return fields | {"files": list(files)} | more


class Disk:
    """The journal and the files of a host, over several lives of its agent."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.state = tmp_path / "root", tmp_path / "state"
        (self.root / "data").mkdir(parents=True)
        self.api: list[dict[str, Any]] = []
        self.told: list[list[dict[str, Any]]] = []
        self.has: list[list[str]] = []
        self.hooks: dict[str, Hook] = {}

    @contextmanager
    def life(self) -> Iterator[HostReleases]:
        journal, fence = Journal(self.state), Fence(self.root)
        inbox = Inbox(lambda *_args, **_more: None)
        delivery = Delivery(
            urllib3.PoolManager(), inbox, journal, Partials(journal, fence), fence, "h", threading.Event()
        )
        disk = self

        class Agents:
            def ask(self, _agent: str, sent: list[dict[str, Any]], has: list[str]) -> list[dict[str, Any]]:
                disk.told.append(sent)
                disk.has.append(has)
                return disk.api

        class FakeClient:
            agents = Agents()

        host = HostReleases(FakeClient(), "h", delivery, threading.Event(), disk.hooks)  # type: ignore[arg-type]
        host.load()
        try:
            yield host
        finally:
            journal.close()
            fence.close()

    def bring(self, host: HostReleases, content: bytes, name: str) -> None:
        """Puts content beside its place, as a transfer does."""
        with (
            host._place(file_of(content, name)) as place,
            host.delivery.partials.opened(place, ("h", sha256(content))) as part,
        ):
            part.file.write(content)
            part.file.flush()
            host.delivery.journal.keep(place.path, sha256(content), part.hidden)

    def contents(self) -> list[bytes | None]:
        paths = [self.root / "data" / name for name in ("a", "b")]
        return [path.read_bytes() if path.exists() else None for path in paths]
