"""The execution log of requests."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.table import Table, put
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import DomainError
from tidegate.records import F, record_from

logger = Logger(service="tidegate", child=True)

# As long as failed requests are kept.
_KEPT = timedelta(days=30)
_numbers = itertools.count()
_LONGEST_STACK = 20_000
_LONGEST_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class RequestLogLine:
    at: Annotated[str, F("when, ISO 8601 UTC")]
    attempt: Annotated[int, F("number of the attempt, from 1")]
    event: Annotated[str, F("`begun`, `goes on`, `done`, `failed`, `stopped` or `died` (its function was killed)")]
    detail: Annotated[str, F("what was done, or why it failed")] = ""
    seconds: Annotated[float | None, F("duration of the step in seconds")] = None
    code: Annotated[str | None, F("code of the error, for a failed attempt")] = None
    # It has file names and lines of the server's code.
    stack: Annotated[str | None, F("stack trace of the error; for admin keys only")] = None

    def view(self, *, with_stack: bool) -> dict[str, Any]:
        hidden = () if with_stack else ("stack",)
        return {name: value for name, value in asdict(self).items() if value not in (None, "") and name not in hidden}


class RequestLog:
    """The execution log of a request: when each attempt began, how long each step took, and why it failed."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def write(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        event: str,
        detail: str = "",
        *,
        since: datetime | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Adds a line. If that fails, only logs the failure, because work must not fail for a line."""
        now = self._clock()
        code = error.code if isinstance(error, DomainError) else type(error).__name__ if error else None
        stack = "".join(traceback.format_exception(error))[-_LONGEST_STACK:] if error else None
        seconds = round((now - since).total_seconds(), 3) if since else None
        line = RequestLogLine(iso(now), attempt, event, detail[:_LONGEST_DETAIL], seconds, code, stack)
        # The number keeps lines of the same millisecond in the order in which this process wrote them.
        line_id = f"{next(_numbers):09d}-{new_id('log', now)}"
        item = keys.request_log_line(project_id, request_id, line.at, line_id) | _item(line)
        try:
            self._table.write(put(item | {"expires_at": int((now + _KEPT).timestamp())}))
        except (ClientError, BotoCoreError, DomainError):
            logger.warning("a line of the execution log was not written", request_id=request_id, event=event)

    def list(self, project_id: str, request_id: str, limit: int, cursor: str | None) -> Listed[RequestLogLine]:
        """The lines of a request, oldest first."""
        page = self._table.page(keys.request_log(project_id, request_id), limit=limit, cursor=cursor)
        return Listed([_line(item) for item in page.items], page.cursor)


def _item(line: RequestLogLine) -> dict[str, Any]:
    """The attributes of a line. Its seconds are stored as text, because DynamoDB's numbers are not floats."""
    fields = {name: value for name, value in asdict(line).items() if value not in (None, "")}
    return fields | ({"seconds": repr(line.seconds)} if line.seconds is not None else {})


def _line(item: Mapping[str, Any]) -> RequestLogLine:
    seconds = item.get("seconds")
    return record_from(RequestLogLine, item, seconds=float(seconds) if seconds is not None else None)
