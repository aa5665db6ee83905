"""Orders, staged pages and finished files of exports, in the files bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from botocore.exceptions import ClientError

from tidegate.aws.part_plan import Part
from tidegate.aws.s3 import Bucket
from tidegate.aws.s3_assembly import assembled
from tidegate.aws.s3_sink import S3Sink
from tidegate.aws.serialization import Item
from tidegate.errors import RecordNotFound, WorkerLost
from tidegate.exports.model import is_spec
from tidegate.files.model import content_disposition
from tidegate.queue.items import request_from
from tidegate.queue.model import COMPLETED

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# S3 may refuse both of two conditional writes at the same moment with a conflict.
_CONFLICTS = 3


class ExportBucket:
    def __init__(self, client: S3Client, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    def put(self, key: str, data: bytes, content_type: str = "application/json") -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data, ContentType=content_type)

    def put_first(self, key: str, data: bytes) -> bytes:
        """Stores the object unless it exists. Returns the stored content: `data`, or that of an earlier writer."""
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

    def assemble(self, key: str, content_type: str, parts: Sequence[Part]) -> int:
        """Makes an object of parts that S3 copies from others or that are uploaded. Returns its size."""
        return assembled(self._client, self._bucket.name, key, content_type, parts)

    def get(self, key: str) -> bytes | None:
        try:
            _, chunks = self._bucket.read(key)
        except RecordNotFound:
            return None
        return b"".join(chunks)

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
    """Whether a staged object is still needed: until the request ends; a failed one keeps its order for a retry."""
    request = request_from(item)
    return not request.is_over or (request.status != COMPLETED and is_spec(key))


def still_rendered(item: Item, key: str) -> bool:
    """Whether a rendered object is still needed: until the request ends; then only the published file is."""
    request = request_from(item)
    return not request.is_over or (request.result or {}).get("key") == key
