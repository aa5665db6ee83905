"""Calls the business with items: sends their data with a signature, parses the answers, gathers log lines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any

from tidegate.batches.items import DataItems, Items
from tidegate.batches.log_lines import LogLines
from tidegate.batches.model import ASYNC, Batch, LogLine
from tidegate.batches.run.answers import ParsedAnswer, call_body, failed, read_reply
from tidegate.batches.run.state import RunState
from tidegate.batches.run.values import ItemCall
from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import FetchError, NotSent, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.kept_connection import KeptConnection
from tidegate.http.model import Limits, Reply
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project

_HEADERS = {"content-type": "application/json", "user-agent": "tidegate/1"}
_MOST_BYTES = 256 * 1024
# With asynchronous results, the call only hands the item over.
_HAND_OVER_SECONDS = 30

Change = Callable[[RunState, float], None]
# An item as the business gets it: index, attempt and data.
Entry = Mapping[str, Any]


class ItemCaller:
    def __init__(
        self,
        batch: Batch,
        url: str,
        project: Project,
        http: SafeHttp,
        sign: Signer,
        clock: Clock,
        shared_rate: float | None = None,
    ) -> None:
        """`shared_rate`: the limit of the business for all its batches together."""
        self._batch = batch
        self._url = url
        self._project = project
        self._http = http
        self._sign = sign
        self._clock = clock
        self.shared_rate = shared_rate
        self.log = LogLines(self._log_line)
        self.items: Items = DataItems(lambda: None)

    def connect(self, max_seconds: float = inf) -> KeptConnection:
        timeout = _HAND_OVER_SECONDS if self._batch.ack == ASYNC else self._batch.item_timeout
        seconds = min(timeout, max_seconds)
        size = _MOST_BYTES * (4 if self._batch.items_per_call > 1 else 1)
        return self._http.line(
            self._url,
            allow_private=self._project.allow_private_urls,
            limits=Limits(connect=5, read=seconds, total=seconds, max_bytes=size),
            project_id=self._batch.project_id,
        )

    def call(self, connection: KeptConnection, calls: Sequence[ItemCall]) -> Change:
        """Sends these items in one POST. Returns the change to apply to the state."""
        items = self.items
        entries = [{"index": items.index(c.index), "attempt": c.attempt} | items.fields(c.index) for c in calls]
        now = self._clock()
        try:
            reply = self._post(connection, entries, now)
            if self._batch.ack == ASYNC and reply.status == 202:
                return lambda state, now: self._await(state, calls, now)
            answers = self._read(reply, entries, now)
        except UrlNotAllowed as error:
            reason = error.detail
            return lambda state, _: state.halt(f"the process URL may not be called: {reason}", failed=True)
        except NotSent as error:
            wait = error.retry_after or 1.0
            return lambda state, now: _postpone(state, calls, now + wait)
        except FetchError as error:
            answers = [failed(error)] * len(calls)
        for call, entry, answer in zip(calls, entries, answers, strict=True):
            self.log_answer(entry["index"], call.attempt, answer)
        return lambda state, now: _record(state, calls, answers, now)

    def dry_call(self, connection: KeptConnection, entries: Sequence[Entry]) -> list[ParsedAnswer]:
        """Makes the same call for a dry run: marked as one, and without an effect on any state."""
        now = self._clock()
        try:
            return self._read(self._post(connection, entries, now, dry_run=True), entries, now)
        except FetchError as error:
            return [failed(error)] * len(entries)

    @property
    def _grouped(self) -> bool:
        return self._batch.items_per_call > 1

    def _post(
        self, connection: KeptConnection, entries: Sequence[Entry], now: datetime, *, dry_run: bool = False
    ) -> Reply:
        body = call_body(self._batch.batch_id, entries, grouped=self._grouped, dry_run=dry_run)
        message_id = self._message_id([entry["index"] for entry in entries]) + (".dry" if dry_run else "")
        return connection.post(body, _HEADERS | self._sign(self._project, message_id, now, body))

    def _message_id(self, indexes: Sequence[int]) -> str:
        """The same for every attempt at these items, and for no other items: receivers de-duplicate by it."""
        first, count = indexes[0], len(indexes)
        message_id = f"{self._batch.batch_id}.{first}"
        if not self._grouped:
            return message_id
        if list(indexes) == list(range(first, first + count)):
            return f"{message_id}-{count}"
        digest = hashlib.sha256(",".join(map(str, indexes)).encode()).hexdigest()[:16]
        return f"{message_id}-{count}.{digest}"

    def _read(self, reply: Reply, entries: Sequence[Entry], now: datetime) -> list[ParsedAnswer]:
        return read_reply(reply, now, [entry["index"] for entry in entries], grouped=self._grouped)

    def _await(self, state: RunState, calls: Sequence[ItemCall], now: float) -> None:
        for call in calls:
            state.await_result(call, now + self._batch.item_timeout)

    def log_answer(self, index: int, attempt: int | None, parsed: ParsedAnswer) -> None:
        """Adds the log lines of an answer, and a line of our own if the item did not succeed."""
        lines = list(parsed.lines)
        if parsed.answer.result != "ok":
            verb = "failed" if parsed.answer.result == "error" else "was abandoned"
            which = f" at attempt {attempt}" if attempt else ""
            lines.append(("error", f"item {index} {verb}{which}: {parsed.answer.detail or 'no reason given'}"))
        if lines:
            self.log.add(index, lines)

    def _log_line(self, level: str, message: str, index: int | None) -> LogLine:
        now = self._clock()
        return LogLine(new_id("log", now), iso(now), message, index, level)


def _record(state: RunState, calls: Sequence[ItemCall], answers: Sequence[ParsedAnswer], now: float) -> None:
    for call, parsed in zip(calls, answers, strict=True):
        state.record(call, parsed.answer, now)


def _postpone(state: RunState, calls: Sequence[ItemCall], at: float) -> None:
    for call in calls:
        state.postpone(call, at)
