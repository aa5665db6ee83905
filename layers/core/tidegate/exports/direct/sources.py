"""Sources that are read without an HTTP endpoint: an S3 object, a DynamoDB query, Athena SQL.

They have the same page interface as a URL, and return the same format, with cursors. The operator allows them on two
levels: parameters of the stack name the buckets, tables and the workgroup, and the functions' roles allow no others; a
project's `read_from` names those that this project may read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import ConnectionFailed, Invalid, ServiceUnavailable, SourceBroken
from tidegate.exports.model import DIRECT
from tidegate.exports.source_page import Place
from tidegate.projects.model import Project

NOTHING = "-"
# AWS errors after which a retry may succeed.
_RETRYABLE = frozenset(
    [
        "InternalError",
        "InternalServerError",
        "InternalServerException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "ThrottlingException",
        "TooManyRequestsException",
    ]
)


@dataclass(slots=True)
class AllowedSources:
    """Names or patterns of names; `-` allows none."""

    bucket: str
    table: str
    workgroup: str
    # This system's own table and bucket, which have the records and files of every project.
    own: frozenset[str]
    project_of: Callable[[str], Project]

    def check(self, project_id: str, source: Mapping[str, Any], field: str) -> None:
        kind, options = next(iter(source.items()))
        parameter, part, allowed = {
            "s3": ("SourceBucket", "bucket", self.bucket),
            "dynamodb": ("SourceTable", "table", self.table),
            "athena": ("SourceWorkgroup", "workgroup", self.workgroup),
        }[kind]
        name = str(options[part])
        if allowed == NOTHING or not fnmatchcase(name, allowed) or name in self.own:
            detail = f"the {part} {name} may not be read: an operator can allow it with the parameter {parameter}"
        elif not self._is_granted(project_id, place := _place(kind, options)):
            detail = (
                f"this project may not read {place}: an admin can allow it with read_from of PATCH /v1/projects/"
                "{project_id}"
            )
        else:
            return
        raise Invalid(detail, errors=[{"loc": ["body", field, kind, part], "msg": detail}])

    def _is_granted(self, project_id: str, place: str) -> bool:
        return any(fnmatchcase(place, pattern) for pattern in self.project_of(project_id).read_from)


def _place(kind: str, options: Mapping[str, Any]) -> str:
    if kind == "s3":
        return f"s3://{options['bucket']}/{options['key']}"
    return f"dynamodb://{options['table']}" if kind == "dynamodb" else f"athena://{options['workgroup']}"


class Reader(Protocol):
    """Reads pages of one kind of source."""

    def page(self, options: Mapping[str, Any], place: Place, step: int, task_id: str, /) -> bytes: ...


class DirectSources:
    """`reader_of` makes the reader of a kind on first use: each needs its own AWS client."""

    def __init__(self, allowed: AllowedSources, reader_of: Mapping[str, Callable[[], Reader]]) -> None:
        self.allowed = allowed
        self._reader_of = reader_of
        self._readers: dict[str, Reader] = {}

    def page(self, project_id: str, task_id: str, address: str, place: Place, step: int) -> bytes:
        source = json.loads(address.removeprefix(DIRECT))
        kind, options = next(iter(source.items()))
        try:
            # Check again: the operator may have withdrawn it since the order.
            self.allowed.check(project_id, source, "source")
        except Invalid as error:
            raise SourceBroken(error.detail) from error
        if kind not in self._readers:
            self._readers[kind] = self._reader_of[kind]()
        try:
            return self._readers[kind].page(options, place, step, task_id)
        except ClientError as error:
            answer = error.response.get("Error", {})
            detail = f"page {place.page} of the source: {answer.get('Code')}: {str(answer.get('Message'))[:300]}"
            if answer.get("Code") in _RETRYABLE:
                raise ServiceUnavailable(detail) from error
            raise SourceBroken(detail) from error
        except BotoCoreError as error:
            raise ConnectionFailed(f"page {place.page} of the source: {error}") from error
