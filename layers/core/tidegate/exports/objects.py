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

# S3 answers a conflict where two write at the same moment, and then perhaps neither has.
_CONFLICTS = 3


class ExportBucket:
    def __init__(self, client: S3Client, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    def put(self, key: str, data: bytes, content_type: str = "application/json") -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data, ContentType=content_type)

    def put_first(self, key: str, data: bytes) -> bytes:
        for _ in range(_CONFLICTS):
            try:
                self._client.put_object(
                    Bucket=self._bucket.name, Key=key, Body=data, ContentType="application/json", IfNoneMatch="*"
                )
                return data
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict"):
                    raise
            kept = self.get(key)
            if kept is not None:
                return kept
        raise WorkerLost(f"others write and remove {key} all the time")

    def store(self, key: str, data: bytes | bytearray) -> str:
        return self._client.put_object(Bucket=self._bucket.name, Key=key, Body=cast(bytes, data))["ETag"]

    def assemble(self, key: str, content_type: str, parts: Sequence[Part]) -> int:
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
    """What a late worker staged for a request that is over is nobody's; the order of one that failed is kept."""
    request = request_from(item)
    return not request.is_over or (request.status != COMPLETED and is_spec(key))


def still_rendered(item: Item, key: str) -> bool:
    """Of an export that is over only the published file is kept, not what a late attempt rendered as well."""
    request = request_from(item)
    return not request.is_over or (request.result or {}).get("key") == key
