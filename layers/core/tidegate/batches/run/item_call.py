"""Items through the business: their data, the signature, the answers, the log lines."""

from __future__ import annotations

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
# With asynchronous results the call itself is only a hand-over.
_HAND_OVER_SECONDS = 30

Change = Callable[[RunState, float], None]


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
        """`shared_rate`: what the business takes from all its batches together."""
        self._batch = batch
        self._url = url
        self._project = project
        self._http = http
        self._sign = sign
        self._clock = clock
        self.shared_rate = shared_rate
        self.log = LogLines(self._line)
        self.items: Items = DataItems(lambda: None)

    def open_line(self, most_seconds: float = inf) -> KeptConnection:
        usual = _HAND_OVER_SECONDS if self._batch.ack == ASYNC else self._batch.item_timeout
        seconds = min(usual, most_seconds)
        size = _MOST_BYTES * (4 if self._batch.items_per_call > 1 else 1)
        return self._http.line(
            self._url,
            allow_private=self._project.allow_private_urls,
            limits=Limits(connect=5, read=seconds, total=seconds, max_bytes=size),
            project_id=self._batch.project_id,
        )

    def call(self, line: KeptConnection, calls: Sequence[ItemCall]) -> Change:
        """One POST for these items. What it brought is applied to the state by the returned change."""
        items = self.items
        told = [{"index": items.name(c.index), "attempt": c.attempt} | items.fields(c.index) for c in calls]
        now = self._clock()
        try:
            reply = self._post(line, told, now)
            if self._batch.ack == ASYNC and reply.status == 202:
                return lambda state, now: self._await(state, calls, now)
            heard = self._read(reply, told, now)
        except UrlNotAllowed as error:
            reason = error.detail
            return lambda state, _: state.halt(f"the process URL may not be called: {reason}", failed=True)
        except NotSent as error:
            wait = error.retry_after or 1.0
            return lambda state, now: _put_back(state, calls, now + wait)
        except FetchError as error:
            heard = [failed(error)] * len(calls)
        for call, entry, one in zip(calls, told, heard, strict=True):
            self.note(entry["index"], call.attempt, one)
        return lambda state, now: _record(state, calls, heard, now)

    def try_items(self, line: KeptConnection, told: Sequence[Mapping[str, Any]]) -> list[ParsedAnswer]:
        """The same call for a dry run: the business is told so, and no state changes."""
        now = self._clock()
        try:
            return self._read(self._post(line, told, now, dry_run=True), told, now)
        except FetchError as error:
            return [failed(error)] * len(told)

    @property
    def _grouped(self) -> bool:
        return self._batch.items_per_call > 1

    def _post(
        self, line: KeptConnection, told: Sequence[Mapping[str, Any]], now: datetime, *, dry_run: bool = False
    ) -> Reply:
        body = call_body(self._batch.batch_id, told, grouped=self._grouped, dry_run=dry_run)
        # The same for every attempt, so that the business can tell a repetition.
        last = f"-{len(told)}" if self._grouped else ""
        message_id = f"{self._batch.batch_id}.{told[0]['index']}{last}" + (".dry" if dry_run else "")
        return line.post(body, _HEADERS | self._sign(self._project, message_id, now, body))

    def _read(self, reply: Reply, told: Sequence[Mapping[str, Any]], now: datetime) -> list[ParsedAnswer]:
        return read_reply(reply, now, [entry["index"] for entry in told], grouped=self._grouped)

    def _await(self, state: RunState, calls: Sequence[ItemCall], now: float) -> None:
        for call in calls:
            state.await_result(call, now + self._batch.item_timeout)

    def note(self, index: int, attempt: int | None, heard: ParsedAnswer) -> None:
        notes = list(heard.lines)
        if heard.answer.result != "ok":
            what = "failed" if heard.answer.result == "error" else "was abandoned"
            which = f" at attempt {attempt}" if attempt else ""
            notes.append(("error", f"item {index} {what}{which}: {heard.answer.detail or 'no reason given'}"))
        if notes:
            self.log.add(index, notes)

    def _line(self, level: str, message: str, index: int | None) -> LogLine:
        now = self._clock()
        return LogLine(new_id("log", now), iso(now), message, index, level)


def _record(state: RunState, calls: Sequence[ItemCall], heard: Sequence[ParsedAnswer], now: float) -> None:
    for call, one in zip(calls, heard, strict=True):
        state.record(call, one.answer, now)


def _put_back(state: RunState, calls: Sequence[ItemCall], at: float) -> None:
    for call in calls:
        state.put_back(call, at)
