"""One transfer, from its link to the file in place."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import urllib3

from tidegate_client.agent.inbox import Inbox, key_of
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.place import Place, RefusedPath, open_place
from tidegate_client.content import Progress
from tidegate_client.download import Cancelled, Link, ResumingDownload, fetch_verified
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.models import Transfer

log = logging.getLogger("tidegate.agent")


@dataclass(frozen=True, slots=True)
class Delivery:
    pool: urllib3.PoolManager
    inbox: Inbox
    journal: Journal
    root: Path
    container_root: Path | None
    agent_id: str
    stopping: threading.Event
    patience: float = 120.0

    def run(self, transfer: Transfer) -> None:
        """Raises what went wrong; returns when the right bytes are in place under the right name."""
        if self.inbox.called_off(key_of(transfer)):
            raise Cancelled
        root = self._root_of(transfer.get("container_id") or "")
        name = transfer["file_name"]
        with open_place(root, transfer["target_file_dir"], name, transfer["target_user"]) as place:
            if place.owner is None:
                log.warning("no user %r here: %s keeps the agent's owner", transfer["target_user"], name)
            self._fetch(transfer, place)

    def _root_of(self, container_id: str) -> Path:
        if not container_id or self.container_root is None:
            return self.root
        if "/" in container_id or container_id in {".", ".."} or "\0" in container_id:
            raise RefusedPath(f"{container_id!r} is not a container id")
        return self.container_root / container_id

    def _fetch(self, transfer: Transfer, place: Place) -> None:
        part = place.part_name(self.agent_id, transfer["signature"])
        self.journal.part_opened(place.path / part)
        with place.open_part(part) as file:
            if place.already_holds(transfer["signature"], transfer.get("size")):
                self._drop(place, part)
                return
            download = ResumingDownload(
                self.pool,
                file,
                size=transfer.get("size"),
                on_progress=self._progress(transfer),
                cancelled=lambda: self.stopping.is_set() or self.inbox.called_off(key_of(transfer)),
                patience=self.patience,
            )
            try:
                fetch_verified(download, self._link(transfer), transfer["signature"])
                place.publish(file, part)
            except Cancelled:
                # A stop keeps the part for the next start; a transfer that was called off has no next.
                if self.stopping.is_set():
                    raise
                self._drop(place, part)
                raise
            except (ChecksumMismatch, TransferError, OSError):
                self._drop(place, part)
                raise
        self.journal.part_closed(place.path / part)

    def _drop(self, place: Place, part: str) -> None:
        place.drop_part(part)
        self.journal.part_closed(place.path / part)

    def _link(self, transfer: Transfer) -> Link:
        key = key_of(transfer)

        def link(refused: str | None) -> str:
            if refused is None:
                return self.inbox.link(key)
            return self.inbox.fresher_link(key, refused, 45.0, self.stopping)

        return link

    def _progress(self, transfer: Transfer) -> Progress:
        key, last = key_of(transfer), 0

        def progress(done: int, total: int | None) -> None:
            nonlocal last
            percent = min(99, done * 100 // total) if total else 0
            if percent != last:
                last = percent
                self.inbox.advance(key, percent)

        return progress
