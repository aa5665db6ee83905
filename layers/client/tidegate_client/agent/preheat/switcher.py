"""Puts staged files in place at their time. Has a thread of its own, since workers may be busy with long downloads."""

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
from tidegate_client.agent.preheat.model import Move, Staged, next_move
from tidegate_client.agent.refusals import Superseded
from tidegate_client.agent.results import staged_result

log = logging.getLogger("tidegate.agent")
LOOK_EVERY = 1.0
# A host polls once, this long before the file's time (drawn at random), to see whether it is still wanted.
ASK_AHEAD = (15.0, 60.0)
ASK_EVERY = 5.0
# How often to check whether newer content was delivered to the same path.
COMPARE_EVERY = 30.0

Finish = Callable[[Staged, Code, str], None]


@dataclass(slots=True)
class _Waiting:
    staged: Staged
    known_since: float
    ask_at: float
    compare_at: float = 0.0


class Switcher:
    def __init__(
        self,
        journal: Journal,
        inbox: Inbox,
        switch: Callable[[Staged], None],
        finish: Finish,
        ask: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        """`switch` puts the file in place; `finish` reports the result; `ask` triggers a poll."""
        self._journal = journal
        self._inbox = inbox
        self._switch = switch
        self._finish = finish
        self._ask = ask
        self._stopping = stopping
        self._changed = threading.Condition()
        self._waiting: dict[Key, _Waiting] = {}

    def load(self) -> None:
        """Loads the files that an earlier process staged."""
        for body in self._journal.staged():
            try:
                staged = Staged.from_json(body)
            except (ValueError, KeyError, TypeError):
                # Written by another version. The API lists the transfer again, and its file is found by its name.
                log.exception("a staged file's record in the journal cannot be read: %s", body[:200])
                continue
            if self._journal.has(staged.key):
                # The process was killed after it had recorded the result.
                self._journal.unstage(staged.key)
            else:
                self.add(staged)

    def add(self, staged: Staged) -> None:
        self._inbox.hold(staged_result(staged))
        ask_at = staged.activate_at - random.uniform(*ASK_AHEAD)  # noqa: S311
        with self._changed:
            self._waiting[staged.key] = _Waiting(staged, time.time(), ask_at)
            self._changed.notify_all()

    def run(self) -> None:
        while not self._stopping.is_set():
            pause = self.look()
            with self._changed:
                self._changed.wait(pause)

    def close(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def look(self) -> float:
        """Does everything that is due. Returns the seconds until the next call."""
        with self._changed:
            waiting = sorted(self._waiting.values(), key=lambda one: one.staged.activate_at)
        for one in waiting:
            if self._stopping.is_set():
                return 0.0
            self._one(one)
        ahead = [one.staged.activate_at - time.time() for one in waiting if one.staged.activate_at > time.time()]
        return max(0.001, min(LOOK_EVERY, *ahead, LOOK_EVERY))

    def _one(self, one: _Waiting) -> None:
        staged, now = one.staged, time.time()
        called_off = self._inbox.called_off(staged.key)
        listed_at = self._inbox.listed_at(staged.key)
        move = next_move(staged, now, called_off=called_off, listed_at=listed_at, known_since=one.known_since)
        if move is Move.REMOVE:
            self._remove(staged)
        elif move is Move.SWITCH or self._is_superseded(one, now):
            self._end(staged)
        elif now >= one.ask_at:
            one.ask_at = now + ASK_EVERY if move is Move.ASK else staged.activate_at
            self._ask()

    def _is_superseded(self, one: _Waiting, now: float) -> bool:
        if now < one.compare_at:
            return False
        one.compare_at = now + COMPARE_EVERY
        sequence = one.staged.transfer.get("sequence")
        try:
            applied = self._journal.applied(Path(one.staged.file.path))
        except JournalError:
            return False
        return applied is not None and sequence is not None and applied.sequence > sequence

    def _end(self, staged: Staged) -> None:
        name = staged.transfer["file_name"]
        try:
            self._switch(staged)
        except Exception as error:
            # Any error is reported as the result of this file; the other files go on.
            code = code_of(error)
            expected = isinstance(error, Superseded | OSError) or code is not Code.INTERNAL
            log.warning("%s: could not be put in place, code %d: %s", name, code, error, exc_info=not expected)
            remove_file(staged)
            self._finish(staged, code, str(error))
        else:
            log.info("%s: in place %.3f s after its time", name, time.time() - staged.activate_at)
            self._finish(staged, Code.DONE, "")
        self._forget(staged)

    def _remove(self, staged: Staged) -> None:
        log.info("%s: cancelled before its time; the staged file is removed", staged.transfer["file_name"])
        remove_file(staged)
        self._inbox.drop(staged.key)
        self._forget(staged)

    def _forget(self, staged: Staged) -> None:
        with self._changed:
            self._waiting.pop(staged.key, None)
        # If this fails, the next start notices: by the stored result, the file in place, or the API's list.
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
