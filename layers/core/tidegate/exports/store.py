"""Exports in the table; their orders, staged pages and finished files in the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from botocore.exceptions import ClientError

from tidegate.aws import keys
from tidegate.aws.s3 import Bucket, PlannedPart, S3Sink, assembled
from tidegate.aws.table import ConditionFailed, Item, Store, Write, delete, put, put_new, update
from tidegate.common.sequences import Listed
from tidegate.errors import WorkerLost, WrongState
from tidegate.exports.model import Export, keeps_pages
from tidegate.files.model import content_disposition
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.queue.model import COMPLETED, TERMINAL, Request
from tidegate.queue.store import request_from
from tidegate.records import item_of, record_from

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_LISTED = timedelta(days=31)
MAIL_UNKNOWN = {
    "state": "unknown",
    "error": "the function that sent it ended before the outcome was stored; it is not sent again",
}


class ExportStore(Store):
    """Stores the list entries of exports and the states of their mails. An export's own state is in its request."""

    def write(self, export: Export) -> Write:
        """Returns the write of a list entry, for the transaction that queues the request."""
        order = f"{export.created_at}#{export.task_id}"
        place = {"gsi1pk": keys.exports_list(export.project_id), "gsi1sk": order}
        return put(keys.export(export.project_id, export.task_id) | item_of(export) | place)

    def ending(self, ended: Request) -> list[Write]:
        """Returns the write by which the list entry expires, for the transaction that ends the request."""
        if ended.finish_time is None:
            return []
        gone = datetime.fromisoformat(ended.finish_time) + _LISTED
        key = keys.export(ended.project_id, ended.request_id)
        return [update(key, {"expires_at": int(gone.timestamp())}, condition="")]

    def begin_mail(self, request: Request, address: str, now: datetime) -> dict[str, Any] | None:
        """Returns None if this caller is to send the mail.

        Otherwise returns the state of the mail that another caller began.
        """
        token, key = token_hex(8), keys.export_mail(request.project_id, request.request_id, address)
        gone = int((now + _LISTED).timestamp())
        if self._table.try_write(put_new(key | {"begun_by": token, "expires_at": gone})):
            return None
        begun = self._table.get(key, consistent=True) or {}
        if begun.get("begun_by") == token:
            # The response to the write was lost, and the SDK wrote again.
            return None
        return dict(begun.get("outcome") or MAIL_UNKNOWN)

    def end_mail(self, request: Request, address: str, outcome: Mapping[str, Any]) -> None:
        key = keys.export_mail(request.project_id, request.request_id, address)
        self._table.write(update(key, {"outcome": dict(outcome)}, condition=""))

    def page(
        self, project_id: str, limit: int, cursor: str | None, wanted: Mapping[str, Any]
    ) -> Listed[tuple[Export, Request | None]]:
        found = self._table.find(keys.exports_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        exports = [record_from(Export, item) for item in found.items]
        items = self._table.batch_get((keys.request(project_id, one.task_id) for one in exports), consistent=True)
        states = {item["request_id"]: request_from(item) for item in items}
        return Listed([(export, states.get(export.task_id)) for export in exports], found.cursor)

    def records(self, project_id: str, task_ids: Sequence[str]) -> list[tuple[Export | None, Request]]:
        """Returns (list entry, request) of the exports that still exist. The list entry has the current labels."""
        wanted = [key(project_id, task_id) for task_id in task_ids for key in (keys.request, keys.export)]
        found = self._table.batch_get(wanted, consistent=True)
        entries = {item["task_id"]: record_from(Export, item) for item in found if "task_id" in item}
        requests = [request_from(item) for item in found if "request_id" in item]
        return [(entries.get(request.request_id), request) for request in requests]

    def change(self, project_id: str, task_id: str, changes: Mapping[str, Any], line: AuditLine) -> bool:
        """Changes fields of the list entry; the value None removes a field.

        Returns False if there is no such export.
        """
        sets = {name: value for name, value in changes.items() if value is not None}
        removes = [name for name, value in changes.items() if value is None]
        return self._table.try_write(update(keys.export(project_id, task_id), sets, removes=removes), audit_write(line))

    def remove(self, project_id: str, task_id: str, line: AuditLine) -> None:
        """Deletes the list entry and the request.

        Raises WrongState while the export runs, because it still holds a slot.
        """
        over = {f"over{number}": status for number, status in enumerate(sorted(TERMINAL))}
        ended = f"attribute_not_exists(#pk) OR #status IN ({', '.join(f':{name}' for name in over)})"
        try:
            self._table.transact(
                [
                    delete(keys.export(project_id, task_id)),
                    delete(keys.request(project_id, task_id), ended, **over),
                    audit_write(line),
                ]
            )
        except ConditionFailed as error:
            raise WrongState("the export has not ended yet: cancel it first") from error


# --- keys of objects


def staging_prefix(project_id: str, task_id: str) -> str:
    """Returns the prefix of the keys of the order and the pulled pages.

    They are deleted once the export is completed.
    """
    return f"staging/{project_id}/{task_id}/"


def spec_object(project_id: str, task_id: str) -> str:
    return f"{staging_prefix(project_id, task_id)}spec.json"


def fill_object(project_id: str, task_id: str) -> str:
    """Returns the key of the copy of the template that was made when the export was ordered."""
    return f"{staging_prefix(project_id, task_id)}fill.xlsx"


def is_order(key: str) -> bool:
    """Whether an object is part of the order. A retry needs the order."""
    return key.count("/") == 3 and key.endswith(("/spec.json", "/fill.xlsx"))


def pages_prefix(project_id: str, task_id: str) -> str:
    return f"{staging_prefix(project_id, task_id)}pages/"


def ledger_object(project_id: str, task_id: str, attempt: int) -> str:
    """Returns the key of an attempt's list of pages.

    Each attempt has its own list, so that a worker that lost its lease cannot overwrite the list of the next attempt.
    """
    return f"{pages_prefix(project_id, task_id)}ledger-{attempt}.json"


def page_object(project_id: str, task_id: str, table: int, page: int) -> str:
    return f"{pages_prefix(project_id, task_id)}{table:03d}/{page:07d}.json"


def output_prefix(project_id: str, task_id: str) -> str:
    return f"exports/{project_id}/{task_id}/"


def output_object(project_id: str, task_id: str, attempt: int) -> str:
    """Returns the key of an attempt's file.

    Each attempt has its own file, so that a worker that lost its lease cannot overwrite the published file.
    """
    return f"{output_prefix(project_id, task_id)}{attempt}"


def sync_object(project_id: str, task_id: str) -> str:
    return f"sync/{project_id}/{task_id}"


def ranges_prefix(project_id: str, task_id: str) -> str:
    """Returns the prefix of the keys of the plan, the records and the fragments.

    This prefix is below that of the staged pages, so that all of these objects are deleted together.
    """
    return f"{pages_prefix(project_id, task_id)}ranges/"


def plan_object(project_id: str, task_id: str) -> str:
    return f"{ranges_prefix(project_id, task_id)}plan.json"


def record_object(project_id: str, task_id: str, table: int, first: int) -> str:
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}.json"


def given_up_object(project_id: str, task_id: str) -> str:
    """Returns the key of the object that says why the export is not rendered in ranges.

    While it exists, the export stages its pages, also in later attempts.
    """
    return f"{ranges_prefix(project_id, task_id)}given-up.txt"


def numbered_object(fragment: str, row: int, number: int) -> str:
    """Returns the key of a fragment whose row numbers were corrected, so that they begin with `row`.

    Each run of the joiner uses the same key.
    """
    folder, _, name = fragment.rpartition("/")
    return f"{folder}/numbered/{name}-{row}-{number}"


def fragment_object(project_id: str, task_id: str, table: int, first: int, nonce: str, number: int) -> str:
    """Returns the key of a fragment.

    Each run of a range has a `nonce` of its own, so its keys are unique. A late duplicate of a run cannot overwrite a
    fragment that a record names.
    """
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}-{nonce}-{number:04d}"


def owned_objects(request: Request) -> list[str]:
    """Returns the keys of the objects that are deleted with the record: the order, and the files of all attempts."""
    project_id, task_id = request.project_id, request.request_id
    rendered = [output_object(project_id, task_id, attempt) for attempt in range(1, request.attempt + 1)]
    return [spec_object(project_id, task_id), fill_object(project_id, task_id), *rendered]


# S3 may refuse both of two conditional writes at the same moment with a conflict.
_CONFLICTS = 3


class ExportBucket:
    """Orders, staged pages and finished files of exports, in the files bucket."""

    def __init__(self, client: S3Client, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    def put(self, key: str, data: bytes, content_type: str = "application/json") -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data, ContentType=content_type)

    def put_first(self, key: str, data: bytes) -> bytes:
        """Stores the object unless it exists. Returns the stored content: `data`, or what an earlier writer stored."""
        for _ in range(_CONFLICTS):
            try:
                self._client.put_object(
                    Bucket=self._bucket.name, Key=key, Body=data, ContentType="application/json", IfNoneMatch="*"
                )
                return data
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict"):
                    raise
            stored = self.get(key)
            if stored is not None:
                return stored
        raise WorkerLost("an intermediate result could not be stored: other workers kept writing and deleting it")

    def store(self, key: str, data: bytes | bytearray) -> str:
        """Stores the object and returns its ETag."""
        return self._client.put_object(Bucket=self._bucket.name, Key=key, Body=cast(bytes, data))["ETag"]

    def assemble(self, key: str, content_type: str, parts: Sequence[PlannedPart]) -> int:
        """Makes one object of parts. Returns the size of the object.

        Each part is uploaded, or copied by S3 from another object.
        """
        return assembled(self._client, self._bucket.name, key, content_type, parts)

    def get(self, key: str) -> bytes | None:
        return self._bucket.content(key)

    def keys(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix)
        for page in pages:
            yield from (found["Key"] for found in page.get("Contents", []))

    def remove(self, prefix: str, keep: str = "") -> None:
        found = [key for key in self.keys(prefix) if key != keep]
        if found:
            self._bucket.delete(*found)

    def sink(self, key: str, content_type: str) -> S3Sink:
        return S3Sink(self._client, self._bucket.name, key, content_type)

    def abort_uploads(self, prefix: str) -> int:
        found = self._client.list_multipart_uploads(Bucket=self._bucket.name, Prefix=prefix).get("Uploads", [])
        for upload in found:
            with suppress(self._client.exceptions.NoSuchUpload):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket.name, Key=upload["Key"], UploadId=upload["UploadId"]
                )
        return len(found)

    def link(self, key: str, seconds: int, file_name: str) -> str:
        return self._bucket.presign_get(key, seconds, disposition=content_disposition(file_name))


def still_staged(item: Item, key: str) -> bool:
    """Whether a staged object is still needed. After the end of the request, only a retry may need it."""
    request = request_from(item)
    return not request.is_over or (request.status != COMPLETED and is_order(key)) or keeps_pages(request)


def still_rendered(item: Item, key: str) -> bool:
    """Whether a rendered object is still needed. After the end of the request, only the published file is needed."""
    request = request_from(item)
    return not request.is_over or (request.result or {}).get("key") == key
