"""Delivers one transfer: download, verify, put in place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import urllib3

from tidegate_client.agent.disk.owners import Owner, owner_in_container, owner_on_host
from tidegate_client.agent.disk.partials import Partials
from tidegate_client.agent.disk.path_locks import PathLocks
from tidegate_client.agent.disk.path_order import PathOrder, superseded
from tidegate_client.agent.disk.permits import Permits
from tidegate_client.agent.disk.place import Place, open_place
from tidegate_client.agent.inbox import Inbox, key_of
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.preheat.files import found_again, opened_unchanged, put_aside, staged_name
from tidegate_client.agent.preheat.model import Staged, StagedFile, activation_of
from tidegate_client.agent.rate_limit import JobLimits, RateLimit
from tidegate_client.agent.refusals import RefusedPath, Restarting, StagedFileLost
from tidegate_client.agent.results import figures_of, iso
from tidegate_client.agent.update import SelfUpdate, is_update
from tidegate_client.content import Progress
from tidegate_client.download import Cancelled, Link, ResumingDownload, fetch_verified
from tidegate_client.errors import ChecksumMismatch, TransferError
from tidegate_client.models import SwarmFigures, Transfer
from tidegate_client.swarm.host import NoSwarm, SwarmHost

log = logging.getLogger("tidegate.agent")


class Moved(NamedTuple):
    """Bytes downloaded for a delivery, and by source if a swarm was used.

    `staged`: the file is not in place yet; it waits for its `activate_at`."""

    size: int
    swarm: SwarmFigures | None = None
    staged: StagedFile | None = None


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

    def run(self, transfer: Transfer) -> tuple[dict[str, Any], Staged | None]:
        """Returns the figures when the file is in place with the right content and owner, or, with the staged file,
        when it waits for its `activate_at`. Raises the reason if it cannot be delivered."""
        began, start = time.monotonic(), time.time()

        def figures(moved: Moved) -> dict[str, Any]:
            swarm = {"swarm": moved.swarm} if moved.swarm else {}
            return figures_of(moved.size, start, time.monotonic() - began) | swarm

        if self.inbox.called_off(key_of(transfer)):
            raise Cancelled
        if is_update(transfer):
            return figures(self._update(transfer)), None
        with self._place(transfer) as place:
            if not self._is_ahead(transfer):
                return figures(self._deliver(transfer, place)), None
            aside = staged_name(place, self.agent_id, transfer)
            # Recorded before the file exists, so that the sweep finds it if the delivery is never resumed.
            with self.partials.using(place.path / aside):
                moved = self._deliver(transfer, place, aside)
                if moved.staged is None:
                    return figures(moved), None
                staged = Staged(transfer, moved.staged, iso(time.time()), figures(moved))
                self.journal.stage(staged.key, staged.to_json(), place.path / aside)
                return staged.figures, staged

    def _is_ahead(self, transfer: Transfer) -> bool:
        at = activation_of(transfer)
        return at is not None and at > time.time()

    @property
    def _order(self) -> PathOrder:
        return PathOrder(self.journal)

    @contextmanager
    def _place(self, transfer: Transfer) -> Iterator[Place]:
        user = transfer["target_user"]
        self.permits.check_user(user)
        root, owner = self._root_and_owner(transfer.get("container_id") or "", user)
        with open_place(root, transfer["target_file_dir"], transfer["file_name"], owner, self.permits) as place:
            yield place

    def switch(self, staged: Staged) -> None:
        """Puts a staged file in place. Raises the reason if that is not possible."""
        transfer = staged.transfer
        with (
            self._place(transfer) as place,
            self._paths.hold(place.file),
            opened_unchanged(place, staged) as file,
        ):
            if file is None:
                self._require_in_place(staged, place)
                return
            previous = self._order.require_newest(transfer, place)
            with self._seeding_paused(transfer):
                place.finish(file, mode_of(transfer))
                self._order.apply(transfer, place, previous, lambda: place.rename(file, staged.file.name))

    def _require_in_place(self, staged: Staged, place: Place) -> None:
        """The staged file is gone: the agent was killed after the rename, or somebody removed it."""
        transfer = staged.transfer
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        ours = applied is None or sequence is None or applied.sequence == sequence
        if not ours or not place.holds(transfer["signature"], transfer.get("size")):
            raise StagedFileLost(
                f"the staged file {staged.file.name} in {place.path} was removed before its time: "
                "redrive the Job to deliver it again"
            )

    def _seeding_paused(self, transfer: Transfer) -> AbstractContextManager[None]:
        """Peers are served from the staged file: its new name and owner must not count as a change of the file."""
        return self.swarm.changing(transfer) if self.swarm is not None else nullcontext()

    def _update(self, transfer: Transfer) -> Moved:
        """Installs a release of the agent. Raises Restarting when the agent must restart as that version."""
        if self.update is None:
            raise RefusedPath("this agent may not update itself: start it with --self-update")
        if self._is_ahead(transfer):
            raise RefusedPath("an update of the agent cannot wait for a time: submit it without activate_at")
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

    def _deliver(self, transfer: Transfer, place: Place, aside: str | None = None) -> Moved:
        """`aside` is the name of the file until its `activate_at`."""
        moved = Moved(0)
        if self._is_there(transfer, place):
            self._seed_existing(transfer, place)
            return moved
        if aside and (staged := found_again(place, aside, transfer["signature"])):
            return Moved(0, staged=staged)
        part = place.part_name(self.agent_id, transfer["signature"])
        with self.partials.using(place.path / part), place.open_part(part, self._cancelled(transfer)) as file:
            try:
                if not self._is_there(transfer, place):
                    moved = self._download(transfer, place, file, part, aside)
            except BaseException as error:
                # Keep bytes that may be right: the next transfer of this content resumes from them.
                if not _worth_keeping(error):
                    self._drop(place, part)
                raise
            self._drop(place, part)
        return moved

    def _download(self, transfer: Transfer, place: Place, file: BinaryIO, part: str, aside: str | None) -> Moved:
        """Downloads from the swarm if the transfer names one that can be joined, else from the store."""
        fell_back: NoSwarm | None = None
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
                    staged = self._publish(transfer, place, file, part, aside)
                    member.seed()
                    figures = member.figures()
                    return Moved(figures["origin_bytes"] + figures["peer_bytes"], figures, staged)
            except NoSwarm as error:
                log.info("%s: downloading from S3 without the swarm: %s", transfer["file_name"], error)
                fell_back = error
        size = self._fetch(transfer, file)
        swarm_figures = fell_back.figures(size) if fell_back else None
        return Moved(size, swarm_figures, self._publish(transfer, place, file, part, aside))

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

    def _publish(
        self, transfer: Transfer, place: Place, file: BinaryIO, part: str, aside: str | None
    ) -> StagedFile | None:
        """Puts the file in place, or aside if its `activate_at` has not come."""
        if aside and self._is_ahead(transfer):
            return put_aside(place, file, part, aside)
        with self._paths.hold(place.file):
            previous = self._order.require_newest(transfer, place)
            place.finish(file, mode_of(transfer))
            self._order.apply(transfer, place, previous, lambda: place.rename(file, part))
        return None

    def _is_there(self, transfer: Transfer, place: Place) -> bool:
        """True if the content is in place already. Raises Superseded if newer content is."""
        signature, size = transfer["signature"], transfer.get("size")
        with self._paths.hold(place.file):
            applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
            if applied and sequence is not None and applied.sequence > sequence:
                # A later window delivered the same bytes: nothing to do, and its owner and mode stay.
                if applied.signature == signature.lower() and place.holds(signature, size):
                    return True
                raise superseded(applied)
            if not place.take_over(signature, size, mode_of(transfer)):
                self._order.require_known(transfer, place, applied)
                return False
            self._order.apply(transfer, place, applied, lambda: None)
            return True

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
