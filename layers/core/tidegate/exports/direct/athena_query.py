"""Rows of an Athena SQL query. Only reading statements are accepted, and the role cannot write tables.

The query is started once per export, even if the step is repeated: its idempotency token is derived from the export's
id. The snapshot is the execution's id, the cursor is Athena's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.common.ids import digest
from tidegate.errors import FetchTimeout, SourceBroken
from tidegate.exports.direct.page_body import page_body
from tidegate.exports.source_json import Digits, write_exact
from tidegate.exports.source_page import Place

# Athena's limit for one page.
MOST_ROWS = 1000
# An invocation has 900 s; the rest is for pulling.
SECONDS = 600.0
# How many failed queries of earlier attempts are skipped: a token always returns the same query.
_FAILED_BEFORE = 4
_FAILED = ("FAILED", "CANCELLED")
_POLL_SECONDS = (0.5, 1.0, 2.0, 5.0)
# Atomic groups: the check must not try other ends for a comment than its first one.
_COMMENTS = r"\s*+(?>--[^\n]*+\n\s*+|/\*(?>.*?\*/)\s*+)*+"
_READS = re.compile(rf"{_COMMENTS}(select|with|values|table|show|describe)\b", re.I | re.S)
_WHOLE, _EXACT = (
    frozenset(["tinyint", "smallint", "integer", "bigint"]),
    frozenset(["decimal", "double", "float", "real"]),
)


def reads_only(sql: str) -> bool:
    return _READS.match(sql) is not None


class AthenaQueries:
    def __init__(
        self, client: Any, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._now = now

    def page(self, options: Mapping[str, Any], place: Place, step: int, task_id: str) -> bytes:
        execution = place.snapshot or self._run(options, task_id)
        request = {"QueryExecutionId": execution, "MaxResults": min(step, MOST_ROWS)}
        if place.cursor:
            request["NextToken"] = place.cursor
        answer = self._client.get_query_results(**request)
        found = answer["ResultSet"]
        columns = [
            (column["Name"], column.get("Type", "varchar")) for column in found["ResultSetMetadata"]["ColumnInfo"]
        ]
        if len({name for name, _ in columns}) < len(columns):
            raise SourceBroken("the query gives two columns the same name: give every column its own name with AS")
        rows = found["Rows"]
        if not place.cursor and rows and _is_head(rows[0], columns):
            rows = rows[1:]
        shown = [
            write_exact({name: _value(cell, kind) for (name, kind), cell in zip(columns, row["Data"], strict=False)})
            for row in rows
        ]
        return page_body(shown, answer.get("NextToken"), execution)

    def _run(self, options: Mapping[str, Any], task_id: str) -> str:
        """Starts the query, or finds it, and waits until it has succeeded. Returns the execution's id.

        If the query of a token failed in an earlier attempt, the next token is used.
        """
        token = digest(task_id, options["sql"], length=64)
        for _ in range(_FAILED_BEFORE):
            execution = self._start(options, token)
            if self._state(execution)["State"] not in _FAILED:
                break
            token = digest(token, execution, length=64)
        until, polls = self._now() + SECONDS, 0
        while (status := self._state(execution))["State"] != "SUCCEEDED":
            if status["State"] in _FAILED:
                raise SourceBroken(
                    f"Athena ended the query as {status['State']}: {str(status.get('StateChangeReason'))[:400]}"
                )
            if self._now() >= until:
                raise FetchTimeout(
                    f"the Athena query did not end within {SECONDS:g} s; the next attempt continues to wait for it"
                )
            self._sleep(_POLL_SECONDS[min(polls, len(_POLL_SECONDS) - 1)])
            polls += 1
        return execution

    def _start(self, options: Mapping[str, Any], token: str) -> str:
        context = {"Database": options.get("database"), "Catalog": options.get("catalog")}
        started = self._client.start_query_execution(
            QueryString=options["sql"],
            WorkGroup=options["workgroup"],
            QueryExecutionContext={name: value for name, value in context.items() if value},
            ClientRequestToken=token,
        )
        return str(started["QueryExecutionId"])

    def _state(self, execution: str) -> dict[str, Any]:
        found = self._client.get_query_execution(QueryExecutionId=execution)
        return dict(found["QueryExecution"]["Status"])


def _is_head(row: Mapping[str, Any], columns: list[tuple[str, str]]) -> bool:
    """Whether the row has the column names: Athena returns them as the first row of a SELECT."""
    return [cell.get("VarCharValue") for cell in row["Data"]] == [name for name, _ in columns]


def _value(cell: Mapping[str, str], kind: str) -> Any:
    text = cell.get("VarCharValue")
    if text is None:
        return None
    if kind == "boolean":
        return text == "true"
    if kind in _WHOLE:
        return int(text)
    if kind in _EXACT and re.fullmatch(r"-?\d+(\.\d+)?([eE]-?\d+)?", text):
        return Digits(text)
    return text
