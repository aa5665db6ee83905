"""Delivers one transfer: download, verify, put in place."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import urllib3

from tidegate_client.agent.disk.owners import Owner, owner_in_container, owner_on_host
from tidegate_client.agent.disk.partials import Partials
from tidegate_client.agent.disk.permits import Permits
from tidegate_client.agent.disk.place import Place, open_place
from tidegate_client.agent.inbox import Inbox, key_of
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.rate_limit import JobLimits, RateLimit
from tidegate_client.agent.refusals import RefusedPath, Restarting, Superseded
from tidegate_client.agent.update import SelfUpdate, is_update
from tidegate_client.content import Progress
from tidegate_client.download import Cancelled, Link, ResumingDownload, fetch_verified
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.models import SwarmFigures, Transfer
from tidegate_client.swarm.host import NoSwarm, SwarmHost

log = logging.getLogger("tidegate.agent")


class Moved(NamedTuple):
    """Bytes downloaded for a delivery, and by source if a swarm was used."""

    size: int
    swarm: SwarmFigures | None = None


class PathLocks:
    """A lock for each path, so that one worker at a time changes it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}
        self._users: Counter[Path] = Counter()

    @contextmanager
    def hold(self, path: Path) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(path, threading.Lock())
            self._users[path] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path], self._locks[path]


@dataclass(frozen=True, slots=True)
class Delivery:
    pool: urllib3.PoolManager
    inbox: Inbox
    journal: Journal
    partials: Partials
    root: Path
    container_root: Path | None
    agent_id: str
    stopping: threading.Event
    permits: Permits = field(default_factory=Permits)
    patience: float = 120.0
    limits: JobLimits = field(default_factory=lambda: JobLimits(None))
    on_bytes: Callable[[int], None] = lambda _count: None
    swarm: SwarmHost | None = None
    update: SelfUpdate | None = None
    _paths: PathLocks = field(default_factory=PathLocks)

    def run(self, transfer: Transfer) -> Moved:
        """Returns when the file is in place with the right content and owner; raises the reason if it cannot be."""
        if self.inbox.called_off(key_of(transfer)):
            raise Cancelled
        if is_update(transfer):
            return self._update(transfer)
        user = transfer["target_user"]
        self.permits.check_user(user)
        root, owner = self._root_and_owner(transfer.get("container_id") or "", user)
        with open_place(root, transfer["target_file_dir"], transfer["file_name"], owner, self.permits) as place:
            return self._deliver(transfer, place)

    def _update(self, transfer: Transfer) -> Moved:
        """Installs a release of the agent. Raises Restarting when the agent must restart as that version."""
        if self.update is None:
            raise RefusedPath("this agent may not update itself: start it with --self-update")
        wanted = self.update.wanted(transfer)
        if wanted is None:
            return Moved(0)
        root, owner = self.update.releases.directory.parent, owner_on_host(wanted["target_user"])
        with open_place(root, wanted["target_file_dir"], wanted["file_name"], owner, Permits()) as place:
            self._deliver(wanted, place)
        self.update.switch(transfer)
        raise Restarting

    def _root_and_owner(self, container_id: str, user: str) -> tuple[Path, Owner]:
        if not container_id:
            return self.root, owner_on_host(user)
        if self.container_root is None:
            raise RefusedPath(
                f"this host has no root for container {container_id!r}: start its agent with --container-root"
            )
        if "/" in container_id or container_id in {".", ".."} or "\0" in container_id:
            raise RefusedPath(f"{container_id!r} is not a container id")
        root = self.container_root / container_id
        if not root.is_dir():
            raise RefusedPath(f"there is no container {container_id!r} here: {root} is not a directory")
        return root, owner_in_container(root, user)

    def _deliver(self, transfer: Transfer, place: Place) -> Moved:
        moved = Moved(0)
        if self._is_there(transfer, place):
            self._seed_existing(transfer, place)
            return moved
        part = place.part_name(self.agent_id, transfer["signature"])
        with self.partials.using(place.path / part), place.open_part(part, self._cancelled(transfer)) as file:
            try:
                if not self._is_there(transfer, place):
                    moved = self._download(transfer, place, file, part)
            except BaseException as error:
                # Keep bytes that may be right: the next transfer of this content resumes from them.
                if not _worth_keeping(error):
                    self._drop(place, part)
                raise
            self._drop(place, part)
        return moved

    def _download(self, transfer: Transfer, place: Place, file: BinaryIO, part: str) -> Moved:
        """Downloads from the swarm if the transfer names one that can be joined, else from the store."""
        if self.swarm is not None and transfer.get("swarm"):
            try:
                with (
                    place.existing() as old,
                    self.swarm.join(
                        transfer,
                        file,
                        self._link(transfer),
                        pool=self.pool,
                        cancelled=self._cancelled(transfer),
                        on_progress=self._progress(transfer),
                        patience=self.patience,
                        limit=self._limit(transfer),
                        old=old,
                    ) as member,
                ):
                    member.fetch()
                    self._publish(transfer, place, file, part)
                    member.seed()
                    figures = member.figures()
                    return Moved(figures["origin_bytes"] + figures["peer_bytes"], figures)
            except NoSwarm as error:
                log.info("%s: downloading from S3 without the swarm: %s", transfer["file_name"], error)
        size = self._fetch(transfer, file)
        self._publish(transfer, place, file, part)
        return Moved(size)

    def _seed_existing(self, transfer: Transfer, place: Place) -> None:
        if self.swarm is not None and transfer.get("swarm"):
            with place.existing() as file:
                if file is not None:
                    self.swarm.seed_existing(transfer, file, self.pool)

    def _limit(self, transfer: Transfer) -> RateLimit | None:
        return self.limits.of(transfer.get("job_id") or transfer["transfer_id"], transfer.get("limit_rate"))

    def _fetch(self, transfer: Transfer, file: BinaryIO) -> int:
        limit = self._limit(transfer)
        download = ResumingDownload(
            self.pool,
            file,
            size=transfer.get("size"),
            on_progress=self._progress(transfer),
            cancelled=self._cancelled(transfer),
            patience=self.patience,
            throttle=limit.take if limit else None,
        )
        had = download.offset
        fetch_verified(download, self._link(transfer), transfer["signature"])
        return download.offset - had if download.offset > had else download.offset

    def _publish(self, transfer: Transfer, place: Place, file: BinaryIO, part: str) -> None:
        with self._paths.hold(place.file):
            previous = self._require_newest(transfer, place)
            place.finish(file, mode_of(transfer))
            self._apply(transfer, place, previous, lambda: place.rename(file, part))

    def _is_there(self, transfer: Transfer, place: Place) -> bool:
        """True if the content is in place already. Raises Superseded if newer content is."""
        signature, size = transfer["signature"], transfer.get("size")
        with self._paths.hold(place.file):
            applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
            if applied and sequence is not None and applied.sequence > sequence:
                # A later window delivered the same bytes: nothing to do, and its owner and mode stay.
                if applied.signature == signature.lower() and place.holds(signature, size):
                    return True
                raise _superseded(applied)
            if not place.take_over(signature, size, mode_of(transfer)):
                self._require_known_order(transfer, place, applied)
                return False
            self._apply(transfer, place, applied, lambda: None)
            return True

    def _require_newest(self, transfer: Transfer, place: Place) -> Applied | None:
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        if applied and sequence is not None and applied.sequence > sequence:
            raise _superseded(applied)
        self._require_known_order(transfer, place, applied)
        return applied

    def _require_known_order(self, transfer: Transfer, place: Place, applied: Applied | None) -> None:
        """After the journal was lost, refuses to replace a file that changed after this content was requested."""
        sequence = transfer.get("sequence")
        if applied is not None or sequence is None or sequence >= self.journal.lost_at * 1000:
            return
        if place.changed_at() * 1000 > sequence:
            raise Superseded(
                "the agent's journal was lost, and the file here changed after this content was requested: "
                "redrive the Job if it is to be replaced"
            )

    def _apply(
        self, transfer: Transfer, place: Place, previous: Applied | None, put_in_place: Callable[[], None]
    ) -> None:
        """Writes the journal first: after a crash before the rename, older content must still be refused."""
        sequence = transfer.get("sequence")
        if sequence is None:
            put_in_place()
            return
        wanted = Applied(sequence, transfer["signature"].lower())
        if previous != wanted:
            self.journal.apply(place.file, wanted)
        try:
            put_in_place()
        except OSError:
            if previous != wanted:
                self.journal.apply(place.file, previous)
            raise

    def _drop(self, place: Place, part: str) -> None:
        """Removes the part file, if it was not renamed, and its journal entry."""
        place.drop_part(part)
        self.partials.gone(place.path / part)

    def _cancelled(self, transfer: Transfer) -> Callable[[], bool]:
        key = key_of(transfer)
        return lambda: self.stopping.is_set() or self.inbox.called_off(key)

    def _link(self, transfer: Transfer) -> Link:
        key = key_of(transfer)

        def link(refused: str | None) -> str:
            if refused is None:
                return self.inbox.link(key)
            return self.inbox.fresher_link(key, refused, 45.0, self.stopping)

        return link

    def _progress(self, transfer: Transfer) -> Progress:
        key, last, before = key_of(transfer), 0, 0

        def progress(done: int, total: int | None) -> None:
            nonlocal last, before
            self.on_bytes(max(0, done - before))
            before = done
            percent = min(99, done * 100 // total) if total else 0
            if percent != last:
                last = percent
                self.inbox.advance(key, percent)

        return progress


def _worth_keeping(error: BaseException) -> bool:
    return isinstance(error, Cancelled | TransferError) and not isinstance(error, ChecksumMismatch)


def mode_of(transfer: Transfer) -> int | None:
    mode = transfer.get("mode")
    return int(mode, 8) & 0o777 if mode else None


def _superseded(applied: Applied) -> Superseded:
    return Superseded(f"superseded by sequence {applied.sequence}, SHA-256 {applied.signature}")
