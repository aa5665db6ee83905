"""Delivers one transfer: downloads the file, verifies it and puts it in place."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import urllib3

from tidegate_client.agent.codes import OwnedByRelease, RefusedPath, Restarting, StagedFileLost
from tidegate_client.agent.disk import (
    Fence,
    Part,
    Partials,
    PathLocks,
    PathOrder,
    Permits,
    Place,
    has_content,
    open_hidden,
    open_place,
    owner_in_container,
    owner_on_host,
    remove_hidden,
    superseded,
)
from tidegate_client.agent.inbox import Inbox, is_truncated, key_of
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.preheat import (
    Staged,
    StagedFile,
    activation_of,
    figures_of,
    iso,
    keep_staged,
    opened_unchanged,
)
from tidegate_client.agent.update import SelfUpdate, is_update
from tidegate_client.download import Cancelled, ResumingDownload, UrlSource, fetch_verified
from tidegate_client.errors import ChecksumMismatch, TidegateError, TransferError
from tidegate_client.inputs import SwarmFigures, Transfer
from tidegate_client.rates import JobLimits, RateLimit
from tidegate_client.swarm.host import NoSwarm, SwarmHost
from tidegate_client.uploads import Progress

log = logging.getLogger("tidegate.agent")
ASK_AFTER_SECONDS, ASK_AGAIN_SECONDS = 3.0, 1.0


class Downloaded(NamedTuple):
    """The result of a download: the bytes received, and their sources if a swarm was used.

    `staged` is set if the file waits for its `activate_at` and is not in place yet."""

    size: int
    swarm: SwarmFigures | None = None
    staged: StagedFile | None = None


@dataclass(frozen=True)
class Delivery:
    """Delivers transfers on this host: `run` handles one transfer, from its cancellation check to the file in place."""

    pool: urllib3.PoolManager
    inbox: Inbox
    journal: Journal
    partials: Partials
    fence: Fence
    agent_id: str
    stopping: threading.Event
    permits: Permits = field(default_factory=Permits)
    patience: float = 120.0
    limits: JobLimits = field(default_factory=lambda: JobLimits(None))
    on_bytes: Callable[[int], None] = lambda _count: None
    swarm: SwarmHost | None = None
    update: SelfUpdate | None = None
    # Whether the WebSocket is open, over which the API reports cancelled transfers at once. If not, `list_wanted`
    # returns the transfers that are still wanted.
    is_told: Callable[[], bool] = lambda: True
    list_wanted: Callable[[], Sequence[Transfer]] = tuple
    # Returns the release that has put this file in place, if one has.
    owner_of: Callable[[Path], str | None] = lambda _file: None
    _paths: PathLocks = field(default_factory=PathLocks)

    def run(self, transfer: Transfer) -> tuple[dict[str, Any], Staged | None]:
        """Delivers a transfer. Afterwards the host has the file with the right content and owner.

        Returns (figures, staged file). The staged file is None unless the file waits for its `activate_at`. If the file
        cannot be delivered, raises an error that says why."""
        began, start = time.monotonic(), time.time()

        def figures(downloaded: Downloaded) -> dict[str, Any]:
            swarm = {"swarm": downloaded.swarm} if downloaded.swarm else {}
            return figures_of(downloaded.size, start, time.monotonic() - began) | swarm

        if self.inbox.is_cancelled(key_of(transfer)):
            raise Cancelled
        if is_update(transfer):
            return self._update(transfer, figures), None
        with self.place(transfer) as place:
            if transfer.get("release"):
                return figures(self._keep(transfer, place)), None
            if not transfer.get("force") and (owner := self.owner_of(place.file)):
                raise OwnedByRelease(f"the release {owner} has {str(place.file)!r} on this host: change that release")
            return self._deliver(transfer, place, figures)

    def path_lock(self, file: Path) -> AbstractContextManager[None]:
        return self._paths.hold(file)

    def has_content_of(self, place: Place, signature: str, size: int | None) -> bool:
        """Returns whether the host has this content of a release.

        The content may be in a hidden file beside its path, unpacked, or in place."""
        if (kept := self.journal.kept_file(place.path, signature)) is not None:
            with open_hidden(place.directory, kept) as part:
                if part is not None and has_content(part.file, signature, size):
                    return True
            self.journal.drop_kept(place.path, signature)
        return self.journal.tree(place.path, signature) is not None or place.holds(signature, size)

    def _keep(self, transfer: Transfer, place: Place) -> Downloaded:
        """Downloads the content of a release to a hidden file beside its path.

        `agent/releases.py` puts the content in place later."""
        if self.has_content_of(place, transfer["signature"], transfer.get("size")):
            self._seed_existing(transfer, place)
            return Downloaded(0)
        salt = (self.agent_id, transfer["signature"])
        with self.partials.opened(place, salt, self._cancelled(transfer), self.patience) as part:
            try:
                return self._download(transfer, place, part)
            except BaseException as error:
                if not _worth_keeping(error):
                    self.partials.discard(place, part)
                raise

    def _is_before_activation(self, transfer: Transfer) -> bool:
        at = activation_of(transfer)
        return at is not None and at > time.time()

    @property
    def _order(self) -> PathOrder:
        return PathOrder(self.journal)

    @contextmanager
    def place(self, transfer: Transfer) -> Iterator[Place]:
        """Checks the owner of a transfer's file, then opens the directory of the file.

        Raises an error if the host does not permit the owner or the directory."""
        user = transfer["target_user"]
        self.permits.check_user(user)
        container = transfer.get("container_id") or ""
        owner = (
            owner_in_container(self.fence.passwd(container), user, self.permits) if container else owner_on_host(user)
        )
        with open_place(self.fence, transfer["target_file_dir"], transfer["file_name"], owner, container) as place:
            yield place

    def switch(self, staged: Staged) -> None:
        """Puts a staged file in place. If that fails, raises an error that says why."""
        transfer = staged.transfer
        with self.place(transfer) as place, self._paths.hold(place.file), opened_unchanged(place, staged) as part:
            if part is None:
                self._require_in_place(staged, place)
            else:
                previous = self._order.require_newest(transfer, place)
                with self._seeding_paused(transfer):
                    place.finish(part.file, mode_of(transfer))
                    self._order.apply(transfer, place, previous, lambda: place.rename(part))
            with suppress(OSError):
                remove_hidden(place.directory, staged.file.hidden)

    def _require_in_place(self, staged: Staged, place: Place) -> None:
        """Called when a staged file is missing.

        Raises StagedFileLost unless the content of the file is already in place. The content is in place if the agent
        was killed just after it had renamed the staged file."""
        transfer = staged.transfer
        applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
        ours = applied is None or sequence is None or applied.sequence == sequence
        if not ours or not place.holds(transfer["signature"], transfer.get("size")):
            raise StagedFileLost(
                f"the staged file in {staged.file.hidden.path} was removed before its activate_at: "
                "redrive the Job to deliver it again"
            )

    def _seeding_paused(self, transfer: Transfer) -> AbstractContextManager[None]:
        """Returns a context in which the file is not served to peers.

        Without this pause, the renaming of the file would look like a change of its content."""
        return self.swarm.changing(transfer) if self.swarm is not None else nullcontext()

    def _update(self, transfer: Transfer, figures: Callable[[Downloaded], dict[str, Any]]) -> dict[str, Any]:
        """Installs a release of the agent itself. Raises Restarting if the agent has to restart as the new version."""
        if self.update is None:
            raise RefusedPath("this agent may not update itself: start it with --self-update")
        if self._is_before_activation(transfer):
            raise RefusedPath("an update of the agent cannot be scheduled: submit it without activate_at")
        local = self.update.local_transfer(transfer)
        if local is None:
            return figures(Downloaded(0))
        owner = owner_on_host(local["target_user"])
        with (
            Fence(self.update.releases.directory.parent) as fence,
            open_place(fence, local["target_file_dir"], local["file_name"], owner) as place,
        ):
            found, _ = self._deliver(local, place, figures)
        if not self.update.switch(transfer):
            return found
        raise Restarting

    def _deliver(
        self, transfer: Transfer, place: Place, figures: Callable[[Downloaded], dict[str, Any]]
    ) -> tuple[dict[str, Any], Staged | None]:
        if self._is_in_place(transfer, place):
            self._seed_existing(transfer, place)
            return figures(Downloaded(0)), None
        salt = (self.agent_id, transfer["signature"])
        with self.partials.opened(place, salt, self._cancelled(transfer), self.patience) as part:
            try:
                downloaded = Downloaded(0)
                if self._is_in_place(transfer, place):
                    pass
                elif place.copy_existing(part.file, transfer["signature"], transfer.get("size")):
                    downloaded = Downloaded(0, staged=self._publish(transfer, place, part))
                    self._seed_existing(transfer, place)
                else:
                    downloaded = self._download(transfer, place, part)
                if downloaded.staged:
                    staged = Staged(transfer, downloaded.staged, iso(time.time()), figures(downloaded))
                    self.journal.stage(staged.key, staged.to_json(), part.hidden.path)
                    return staged.figures, staged
            except BaseException as error:
                # Keep bytes that may be right, so that the next transfer of this content resumes from them.
                if not _worth_keeping(error):
                    self.partials.discard(place, part)
                raise
            self.partials.discard(place, part)
        return figures(downloaded), None

    def _download(self, transfer: Transfer, place: Place, part: Part) -> Downloaded:
        """Downloads the file from the swarm that the transfer names, if it names one and this host can join it.

        If there is no such swarm, or if the swarm fails, downloads the file from S3."""
        fell_back: NoSwarm | None = None
        if self.swarm is not None and transfer.get("swarm"):
            try:
                with (
                    place.existing() as old,
                    self.swarm.join(
                        transfer,
                        part.file,
                        self._url_source(transfer),
                        pool=self.pool,
                        cancelled=self._cancelled(transfer),
                        on_progress=self._progress(transfer),
                        patience=self.patience,
                        limit=self._limit(transfer),
                        old=old,
                    ) as member,
                ):
                    member.fetch()
                    staged = self._publish(transfer, place, part)
                    member.seed()
                    figures = member.figures()
                    return Downloaded(figures["origin_bytes"] + figures["peer_bytes"], figures, staged)
            except NoSwarm as error:
                log.info("%s: downloading from S3 without the swarm: %s", transfer["file_name"], error)
                fell_back = error
        size = self._fetch(transfer, part.file)
        swarm_figures = fell_back.figures(size) if fell_back else None
        return Downloaded(size, swarm_figures, self._publish(transfer, place, part))

    def _seed_existing(self, transfer: Transfer, place: Place) -> None:
        if self.swarm is not None and transfer.get("swarm"):
            with place.existing() as file:
                if file is not None:
                    self.swarm.seed_existing(transfer, file, self.pool)

    def _limit(self, transfer: Transfer) -> RateLimit | None:
        return self.limits.limit_for(transfer.get("job_id") or transfer["transfer_id"], transfer.get("limit_rate"))

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
            on_bytes=self.on_bytes,
        )
        offset_before = download.offset
        fetch_verified(download, self._url_source(transfer), transfer["signature"])
        return download.offset - offset_before if download.offset > offset_before else download.offset

    def _publish(self, transfer: Transfer, place: Place, part: Part) -> StagedFile | None:
        """Puts the file in place, stages it for its `activate_at`, or keeps it for its release."""
        if transfer.get("release"):
            place.require_there()
            part.file.flush()
            os.fsync(part.file.fileno())
            self.journal.keep(place.path, transfer["signature"], part.hidden)
            return None
        if self._is_before_activation(transfer):
            place.require_there()
            return keep_staged(place, part)
        self._require_wanted(transfer)
        with self._paths.hold(place.file):
            previous = self._order.require_newest(transfer, place)
            place.finish(part.file, mode_of(transfer))
            self._order.apply(transfer, place, previous, lambda: place.rename(part))
        return None

    def _require_wanted(self, transfer: Transfer) -> None:
        """Raises Cancelled if the Job has ended meanwhile.

        Asks the API only if no WebSocket would report a cancellation and no recent poll has listed the transfer. If
        the API does not answer, the delivery continues."""
        key = key_of(transfer)
        for attempt in range(2):
            if self._cancelled(transfer)():
                raise Cancelled
            if self.is_told() or self.inbox.unconfirmed_seconds(key) < ASK_AFTER_SECONDS:
                return
            if attempt:
                # The list may lag behind.
                self.stopping.wait(ASK_AGAIN_SECONDS)
            try:
                listed = self.list_wanted()
            except TidegateError as error:
                log.info("%s: put in place without asking whether it is still wanted: %s", transfer["file_name"], error)
                return
            if is_truncated(listed) or any(key_of(one) == key for one in listed):
                return
        raise Cancelled

    def _is_in_place(self, transfer: Transfer, place: Place) -> bool:
        """Returns whether the content is already in place.

        Raises Superseded if newer content is, or may be, in place."""
        signature, size = transfer["signature"], transfer.get("size")
        with self._paths.hold(place.file):
            applied, sequence = self.journal.applied(place.file), transfer.get("sequence")
            if applied and sequence is not None and applied.sequence > sequence:
                # A later window delivered the same bytes: nothing to do, and its owner and mode are kept.
                if applied.signature == signature.lower() and place.holds(signature, size):
                    return True
                raise superseded(applied)
            if not place.is_done(signature, size, mode_of(transfer)):
                self._order.require_known(transfer, place, applied)
                return False
            self._order.apply(transfer, place, applied, lambda: None)
            return True

    def _cancelled(self, transfer: Transfer) -> Callable[[], bool]:
        key = key_of(transfer)
        return lambda: self.stopping.is_set() or self.inbox.is_cancelled(key)

    def _url_source(self, transfer: Transfer) -> UrlSource:
        key = key_of(transfer)

        def get_url(refused: str | None) -> str:
            if refused is None:
                return self.inbox.url(key)
            return self.inbox.wait_for_new_url(key, refused, 45.0, self.stopping)

        return get_url

    def _progress(self, transfer: Transfer) -> Progress:
        key, last = key_of(transfer), 0

        def progress(done: int, total: int | None) -> None:
            nonlocal last
            percent = min(99, done * 100 // total) if total else 0
            if percent != last:
                last = percent
                self.inbox.advance(key, percent)

        return progress


def _worth_keeping(error: BaseException) -> bool:
    return isinstance(error, (Cancelled, TransferError)) and not isinstance(error, ChecksumMismatch)


def mode_of(transfer: Transfer) -> int | None:
    mode = transfer.get("mode")
    return int(mode, 8) & 0o777 if mode else None
