"""Files that are downloaded before their `activate_at` (staged), and put in place at that time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from tidegate_client.agent.codes import Code, StagedFileLost, Superseded, code_of
from tidegate_client.agent.disk import Part, Place, has_content, open_hidden
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import HiddenFile, Journal, JournalError, Key
from tidegate_client.compat import moment
from tidegate_client.errors import without_queries
from tidegate_client.inputs import Transfer, TransferResult

if TYPE_CHECKING:
    from typing_extensions import Self

# --- model
# Staged files: downloaded before they are to be put in place. No I/O here.

# How long after `activate_at` a restarted agent waits for the API to confirm that the file is still wanted.
CONFIRM_SECONDS = 60.0
# If a Job has ended by the host's clock, a poll must have listed the file within this time.
RECENT_SECONDS = 30.0
# Not stored: URLs expire within minutes, and the swarm's tokens are secrets that only its session needs.
_LEFT_OUT = frozenset({"url", "swarm", "expires_at"})


class FileMetadata(NamedTuple):
    """The metadata of a file, by which a change is noticed without reading the file."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class StagedFile(NamedTuple):
    """A downloaded file that waits for its activation under a hidden `name`. `path`: its final path."""

    name: str
    path: str
    metadata: FileMetadata

    @property
    def hidden(self) -> HiddenFile:
        directory, _, secret = self.name.partition("/")
        return HiddenFile(Path(self.path).with_name(directory), secret)


@dataclass(frozen=True)
class Staged:
    """A transfer whose file is staged. `figures`: the figures of the download, which are reported with the result."""

    transfer: Transfer
    file: StagedFile
    staged_at: str
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError if a time cannot be read.

        Otherwise that time would stop the switcher later."""
        _ = self.activate_at, self.activate_until

    @property
    def key(self) -> Key:
        return self.transfer["transfer_id"], self.transfer.get("container_id") or ""

    @property
    def activate_at(self) -> float:
        return activation_of(self.transfer) or 0.0

    @property
    def activate_until(self) -> float:
        """When the Job ends (Unix time); `activate_at` if the transfer does not say when.

        If the transfer does not say when, the API must confirm every switch after `activate_at`."""
        until = self.transfer.get("activate_until")
        return moment(until).timestamp() if until else self.activate_at

    def to_json(self) -> str:
        kept = {name: value for name, value in self.transfer.items() if name not in _LEFT_OUT}
        return json.dumps(asdict(self) | {"transfer": kept})

    @classmethod
    def from_json(cls, text: str) -> Self:
        stored = json.loads(text)
        name, path, metadata = stored["file"]
        return cls(
            stored["transfer"], StagedFile(name, path, FileMetadata(*metadata)), stored["staged_at"], stored["figures"]
        )


def activation_of(transfer: Transfer) -> float | None:
    """Returns when the file is to be put in place (Unix time); None if that is as soon as it is downloaded."""
    at = transfer.get("activate_at")
    return moment(at).timestamp() if at else None


class Action(Enum):
    WAIT = "wait"
    CONFIRM = "confirm"
    SWITCH = "switch"
    REMOVE = "remove"


def next_action(staged: Staged, now: float, *, cancelled: bool, listed_at: float | None, known_since: float) -> Action:
    """Decides what to do with a staged file now: wait, ask the API, put it in place, or remove it.

    `listed_at`: when a poll of this process last listed the transfer; None if no poll did. `known_since`: when this
    process staged or loaded the file.

    A running agent switches by its own clock, even if it cannot reach the API. A restarted agent first waits for a
    while for the API's confirmation, because the Job may have been cancelled. After the Job's end, a file is put in
    place only if the API still lists the transfer."""
    if cancelled:
        return Action.REMOVE
    if now < staged.activate_at:
        return Action.WAIT
    if now >= staged.activate_until:
        recent = listed_at is not None and abs(now - listed_at) <= RECENT_SECONDS
        return Action.SWITCH if recent else Action.CONFIRM
    waited = now - max(staged.activate_at, known_since)
    return Action.SWITCH if listed_at is not None or waited >= CONFIRM_SECONDS else Action.CONFIRM


# --- results
# Builds the results that the agent reports to the API.

_LONGEST_MESSAGE = 500


def result_of(
    transfer: Transfer, code: Code, message: str = "", figures: dict[str, Any] | None = None
) -> TransferResult:
    result: dict[str, Any] = {
        "transfer_id": transfer["transfer_id"],
        "container_id": transfer.get("container_id") or "",
        "error_code": int(code),
    }
    if message:
        result["error_msg"] = without_queries(message)[:_LONGEST_MESSAGE]
    if code is Code.DONE:
        result["progress"] = 100
    return cast(TransferResult, result | (figures or {}))


def staged_result(staged: Staged) -> TransferResult:
    report = {"progress": 100, "staged_at": staged.staged_at, **staged.figures}
    return result_of(staged.transfer, Code.IN_PROGRESS, "", report)


def figures_of(moved: int, start: float, seconds: float) -> dict[str, Any]:
    """Returns size, speed and times of a transfer.

    The end is the start plus the measured `seconds`. It is not read from the wall clock, because that clock may
    jump."""
    speed = int(moved / max(seconds, 0.001))
    return {"size": moved, "speed": speed, "start_time": iso(start), "end_time": iso(start + seconds)}


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


# --- files
# The staged file on disk: a part file that is kept until its time.


def metadata_of(file: BinaryIO) -> FileMetadata:
    status = os.fstat(file.fileno())
    return FileMetadata(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def keep_staged(place: Place, part: Part) -> StagedFile:
    """Turns a verified part file into the staged file. It stays hidden until the switch."""
    part.file.flush()
    os.fsync(part.file.fileno())
    for directory in (part.directory, place.directory):
        os.fsync(directory)
    name = f"{part.hidden.path.name}/{part.hidden.secret}"
    return StagedFile(name, os.fspath(place.file), metadata_of(part.file))


@contextlib.contextmanager
def opened_unchanged(place: Place, staged: Staged) -> Iterator[Part | None]:
    """Opens the staged file; yields None if it is gone. Raises StagedFileLost if its content was changed.

    The file is read and hashed only if its metadata changed."""
    transfer = staged.transfer
    with open_hidden(place.directory, staged.file.hidden) as part:
        if part is not None and metadata_of(part.file) != staged.file.metadata:
            size = transfer.get("size") or staged.file.metadata.size
            if not has_content(part.file, transfer["signature"], size):
                raise StagedFileLost(
                    f"the staged file in {place.path / part.hidden.path.name} was changed before its activate_at: "
                    "redrive the Job to deliver it again"
                )
        yield part


log = logging.getLogger("tidegate.agent")
CHECK_EVERY = 1.0
# Before `activate_at` a host polls once to see whether the file is still wanted: a random time between these.
CONFIRM_AHEAD = (15.0, 60.0)
CONFIRM_EVERY = 5.0
# How often to check whether newer content was delivered to the same path.
COMPARE_EVERY = 30.0

Finish = Callable[[Staged, Code, str], None]


@dataclass
class _Entry:
    staged: Staged
    known_since: float
    confirm_at: float
    compare_at: float = 0.0


def _order(entry: _Entry) -> tuple[float, int]:
    """Returns the sort key of a staged file: the time first.

    Of two contents for the same moment, the newer comes first. So the older one is never put in place."""
    return entry.staged.activate_at, -(entry.staged.transfer.get("sequence") or 0)


class Switcher:
    """Puts staged files in place at their `activate_at`, in a thread of its own, because workers may be busy."""

    def __init__(
        self,
        journal: Journal,
        inbox: Inbox,
        switch: Callable[[Staged], None],
        remove: Callable[[HiddenFile], None],
        finish: Finish,
        trigger_poll: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        """`switch` puts a file in place, `remove` deletes a staged file, `finish` reports the result."""
        self._journal = journal
        self._inbox = inbox
        self._switch = switch
        self._remove_file = remove
        self._finish = finish
        self._trigger_poll = trigger_poll
        self._stopping = stopping
        self._changed = threading.Condition()
        self._waiting: dict[Key, _Entry] = {}

    def load(self) -> None:
        """Loads the files that an earlier process staged."""
        for body in self._journal.staged():
            try:
                staged = Staged.from_json(body)
            except (ValueError, KeyError, TypeError):
                # Written by another version. The API lists the transfer again, and its file is found by its name.
                log.exception("a staged file's record in the journal cannot be read: %s", body[:200])
                continue
            if self._journal.has_result(staged.key):
                # The process was killed after it had recorded the result.
                self._journal.unstage(staged.key)
            elif not staged.file.hidden.secret:
                # Of version 1.0, in reach of other users. The API lists the transfer again.
                self._discard(staged)
                self._journal.unstage(staged.key)
            else:
                self.add(staged)

    def add(self, staged: Staged) -> None:
        self._inbox.mark_staged(staged_result(staged))
        confirm_at = staged.activate_at - random.uniform(*CONFIRM_AHEAD)  # noqa: S311
        with self._changed:
            self._waiting[staged.key] = _Entry(staged, time.time(), confirm_at)
            self._changed.notify_all()

    def run(self) -> None:
        while not self._stopping.is_set():
            pause = self.run_due()
            with self._changed:
                self._changed.wait(pause)

    def close(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def run_due(self) -> float:
        """Handles the files that are due; returns the seconds until it should be called again."""
        with self._changed:
            waiting = sorted(self._waiting.values(), key=_order)
        for entry in waiting:
            if self._stopping.is_set():
                return 0.0
            self._handle(entry)
        ahead = [entry.staged.activate_at - time.time() for entry in waiting if entry.staged.activate_at > time.time()]
        return max(0.001, min(CHECK_EVERY, *ahead, CHECK_EVERY))

    def _handle(self, entry: _Entry) -> None:
        staged, now = entry.staged, time.time()
        cancelled = self._inbox.is_cancelled(staged.key)
        listed_at = self._inbox.listed_at(staged.key)
        action = next_action(staged, now, cancelled=cancelled, listed_at=listed_at, known_since=entry.known_since)
        if action is Action.REMOVE:
            self._remove(staged)
        elif action is Action.SWITCH or self._is_superseded(entry, now):
            self._end(staged)
        elif now >= entry.confirm_at:
            entry.confirm_at = now + CONFIRM_EVERY if action is Action.CONFIRM else staged.activate_at
            self._trigger_poll()

    def _is_superseded(self, entry: _Entry, now: float) -> bool:
        if now < entry.compare_at:
            return False
        entry.compare_at = now + COMPARE_EVERY
        sequence = entry.staged.transfer.get("sequence")
        try:
            applied = self._journal.applied(Path(entry.staged.file.path))
        except JournalError:
            return False
        return applied is not None and sequence is not None and applied.sequence > sequence

    def _end(self, staged: Staged) -> None:
        name = staged.transfer["file_name"]
        try:
            self._switch(staged)
        except Exception as error:
            # Any error is reported as the result of this file; the other files are not affected.
            code = code_of(error)
            expected = isinstance(error, (Superseded, OSError)) or code is not Code.INTERNAL
            log.warning("%s: could not be put in place, code %d: %s", name, code, error, exc_info=not expected)
            self._discard(staged)
            self._finish(staged, code, str(error))
        else:
            log.info("%s: put in place %.3f s after its activate_at", name, time.time() - staged.activate_at)
            self._finish(staged, Code.DONE, "")
        self._forget(staged)

    def _remove(self, staged: Staged) -> None:
        log.info("%s: cancelled before its activate_at; the staged file is removed", staged.transfer["file_name"])
        self._discard(staged)
        self._inbox.drop(staged.key)
        self._forget(staged)

    def _forget(self, staged: Staged) -> None:
        with self._changed:
            self._waiting.pop(staged.key, None)
        # If this fails, the next start finds out by the stored result, the file in place, or the API's list.
        with contextlib.suppress(JournalError):
            self._journal.unstage(staged.key)

    def _discard(self, staged: Staged) -> None:
        try:
            self._remove_file(staged.file.hidden)
        except OSError as error:
            log.warning("the staged file %s cannot be removed: %s", staged.file.hidden.path, error)
