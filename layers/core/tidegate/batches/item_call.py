"""One item through the business: its data, its signature, its answer, its log lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidegate.batches.answers import NOTHING, ParsedAnswer, failed, item_body, read_reply
from tidegate.batches.model import Batch, LogLine
from tidegate.batches.run_state import ItemCall, RunState
from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import FetchError, NotSent, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.kept_connection import KeptConnection
from tidegate.http.model import Limits
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project

ITEM_LIMITS = Limits(connect=5, read=30, total=30, max_bytes=256 * 1024)
MOST_LINES_WAITING = 5000
_HEADERS = {"content-type": "application/json", "user-agent": "tidegate/1"}


class Items(Protocol):
    """What belongs to each index."""

    def item(self, index: int, /) -> Any: ...


class CountedItems:
    """Items that are only numbers; each comes with the batch's data, if it has any."""

    def __init__(self, job_data: Any) -> None:
        self._job_data = NOTHING if job_data is None else job_data

    def item(self, _: int) -> Any:
        return self._job_data


class ListedItems:
    def __init__(self, job_data: Sequence[Any]) -> None:
        self._job_data = job_data

    def item(self, index: int) -> Any:
        return self._job_data[index]


class ItemCaller:
    def __init__(self, batch: Batch, url: str, project: Project, http: SafeHttp, sign: Signer, clock: Clock) -> None:
        self._batch = batch
        self._url = url
        self._project = project
        self._http = http
        self._sign = sign
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._lost = 0
        self.items: Items = CountedItems(None)

    def open_line(self) -> KeptConnection:
        return self._http.line(
            self._url,
            allow_private=self._project.allow_private_urls,
            limits=ITEM_LIMITS,
            project_id=self._batch.project_id,
        )

    def call(self, line: KeptConnection, call: ItemCall) -> Callable[[RunState, float], None]:
        body = item_body(self._batch.batch_id, call, self.items.item(call.index))
        # The same for every attempt, so that the business can tell a repetition.
        message_id = f"{self._batch.batch_id}.{call.index}"
        now = self._clock()
        try:
            reply = line.post(body, _HEADERS | self._sign(self._project, message_id, now, body))
            heard = read_reply(reply, now)
        except UrlNotAllowed as error:
            reason = error.detail
            return lambda course, _: course.halt(f"the process URL may not be called: {reason}", failed=True)
        except NotSent as error:
            wait = error.retry_after or 1.0
            return lambda course, now: course.put_back(call, now + wait)
        except FetchError as error:
            heard = failed(error)
        self._note(call, heard)
        return lambda course, now: course.record(call, heard.answer, now)

    def drain_lines(self) -> list[LogLine]:
        with self._lock:
            lines, self._lines = self._lines, []
            if self._lost:
                lines.append(self._line("warning", f"{self._lost} log lines came too fast and were dropped", None))
                self._lost = 0
        return lines

    def put_back(self, lines: list[LogLine]) -> None:
        with self._lock:
            self._lines = lines + self._lines

    def _note(self, call: ItemCall, heard: ParsedAnswer) -> None:
        notes = list(heard.lines)
        if heard.answer.result != "ok":
            what = "failed" if heard.answer.result == "error" else "was abandoned"
            detail = heard.answer.detail or "no reason given"
            notes.append(("error", f"item {call.index} {what} at attempt {call.attempt}: {detail}"))
        if not notes:
            return
        lines = [self._line(level, message, call.index) for level, message in notes]
        with self._lock:
            if len(self._lines) > MOST_LINES_WAITING:
                self._lost += len(lines)
            else:
                self._lines += lines

    def _line(self, level: str, message: str, index: int | None) -> LogLine:
        now = self._clock()
        return LogLine(new_id("log", now), iso(now), message, index, level)
