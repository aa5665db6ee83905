"""Puts staged files in place at their `activate_at`, in a thread of its own: workers may be busy downloading."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate_client.agent.codes import Code, code_of
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import Journal, JournalError, Key
from tidegate_client.agent.preheat.model import Action, Staged, next_action
from tidegate_client.agent.refusals import Superseded
from tidegate_client.agent.results import staged_result

log = logging.getLogger("tidegate.agent")
CHECK_EVERY = 1.0
# Before `activate_at` a host polls once to see whether the file is still wanted: a random time between these.
CONFIRM_AHEAD = (15.0, 60.0)
CONFIRM_EVERY = 5.0
# How often to check whether newer content was delivered to the same path.
COMPARE_EVERY = 30.0

Finish = Callable[[Staged, Code, str], None]


@dataclass(slots=True)
class _Entry:
    staged: Staged
    known_since: float
    confirm_at: float
    compare_at: float = 0.0


class Switcher:
    def __init__(
        self,
        journal: Journal,
        inbox: Inbox,
        switch: Callable[[Staged], None],
        finish: Finish,
        trigger_poll: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        """`switch` puts the file in place; `finish` reports the result."""
        self._journal = journal
        self._inbox = inbox
        self._switch = switch
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
        """Does everything that is due. Returns the seconds until the next call."""
        with self._changed:
            waiting = sorted(self._waiting.values(), key=lambda entry: entry.staged.activate_at)
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
            expected = isinstance(error, Superseded | OSError) or code is not Code.INTERNAL
            log.warning("%s: could not be put in place, code %d: %s", name, code, error, exc_info=not expected)
            remove_file(staged)
            self._finish(staged, code, str(error))
        else:
            log.info("%s: put in place %.3f s after its activate_at", name, time.time() - staged.activate_at)
            self._finish(staged, Code.DONE, "")
        self._forget(staged)

    def _remove(self, staged: Staged) -> None:
        log.info("%s: cancelled before its activate_at; the staged file is removed", staged.transfer["file_name"])
        remove_file(staged)
        self._inbox.drop(staged.key)
        self._forget(staged)

    def _forget(self, staged: Staged) -> None:
        with self._changed:
            self._waiting.pop(staged.key, None)
        # If this fails, the next start finds out by the stored result, the file in place, or the API's list.
        with contextlib.suppress(JournalError):
            self._journal.unstage(staged.key)


def remove_file(staged: Staged) -> None:
    directory = Path(staged.file.path).parent
    try:
        # The directory may belong to another user, who may have replaced it by a symlink.
        if directory.resolve() == directory:
            (directory / staged.file.name).unlink(missing_ok=True)
    except OSError as error:
        log.warning("the staged file %s in %s cannot be removed: %s", staged.file.name, directory, error)
