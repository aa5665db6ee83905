"""Sources that are read without an endpoint: an S3 object, a DynamoDB query, SQL by Athena.

They are behind the same page interface as a source's URL and answer in its words, with cursors. What may be read is
the operator's decision: parameters of the stack name the buckets, tables and the workgroup, and the functions' roles
allow no others.
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

NOTHING = "-"
# What AWS answers where another try may succeed.
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
    """Names or patterns of names; `-` allows none. `projects` is `*` or ids separated by commas."""

    bucket: str = NOTHING
    table: str = NOTHING
    workgroup: str = NOTHING
    projects: str = "*"
    # This system's own, which hold the records and files of every project.
    own: frozenset[str] = frozenset()

    def check(self, project_id: str, source: Mapping[str, Any], field: str) -> None:
        kind, options = next(iter(source.items()))
        parameter, part, allowed = {
            "s3": ("SourceBucket", "bucket", self.bucket),
            "dynamodb": ("SourceTable", "table", self.table),
            "athena": ("SourceWorkgroup", "workgroup", self.workgroup),
        }[kind]
        name = str(options[part])
        if allowed == NOTHING or not fnmatchcase(name, allowed) or name in self.own:
            said = f"the {part} {name} may not be read: whoever runs this system allows it by the parameter {parameter}"
        elif self.projects != "*" and project_id not in self.projects.split(","):
            said = "this project may not read sources directly: whoever runs this system sets SourceProjects"
        else:
            return
        raise Invalid(said, errors=[{"loc": ["body", field, kind, part], "msg": said}])


class Reader(Protocol):
    """Rows of one kind of source."""

    def page(self, options: Mapping[str, Any], place: Place, step: int, task_id: str, /) -> bytes: ...


class DirectSources:
    """`reader_of` makes the reader of a kind when it is first used: each needs a client of its own."""

    def __init__(self, allowed: AllowedSources, reader_of: Mapping[str, Callable[[], Reader]]) -> None:
        self.allowed = allowed
        self._reader_of = reader_of
        self._readers: dict[str, Reader] = {}

    def page(self, project_id: str, task_id: str, address: str, place: Place, step: int) -> bytes:
        source = json.loads(address.removeprefix(DIRECT))
        kind, options = next(iter(source.items()))
        try:
            # Looked at again: the operator may have taken something out since.
            self.allowed.check(project_id, source, "source")
        except Invalid as error:
            raise SourceBroken(error.detail) from error
        if kind not in self._readers:
            self._readers[kind] = self._reader_of[kind]()
        try:
            return self._readers[kind].page(options, place, step, task_id)
        except ClientError as error:
            found = error.response.get("Error", {})
            said = f"page {place.page} of the source: {found.get('Code')}: {str(found.get('Message'))[:300]}"
            if found.get("Code") in _RETRYABLE:
                raise ServiceUnavailable(said) from error
            raise SourceBroken(said) from error
        except BotoCoreError as error:
            raise ConnectionFailed(f"page {place.page} of the source: {error}") from error
