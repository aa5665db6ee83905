"""Objects of batches in the bucket: files with rows, their indexes, outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidegate.aws.s3 import CHUNK, Bucket
from tidegate.aws.s3_sink import S3Sink
from tidegate.errors import RecordNotFound

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class RowBucket:
    def __init__(self, client: S3Client, bucket: Bucket) -> None:
        self._client = client
        self._bucket = bucket

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._bucket.read(key)[1]

    def span(self, key: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        answer = self._client.get_object(Bucket=self._bucket.name, Key=key, Range=f"bytes={start}-{end - 1}")
        return answer["Body"].read()

    def stream_span(self, key: str, start: int, end: int) -> Iterator[bytes]:
        answer = self._client.get_object(Bucket=self._bucket.name, Key=key, Range=f"bytes={start}-{end - 1}")
        return answer["Body"].iter_chunks(CHUNK)

    def get(self, key: str) -> bytes | None:
        try:
            return b"".join(self.chunks(key))
        except RecordNotFound:
            return None

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data)

    def size(self, key: str) -> int | None:
        found = self._bucket.head(key)
        return found.size if found else None

    def keys(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix):
            yield from (entry["Key"] for entry in page.get("Contents", []))

    def lines(self, key: str) -> Iterator[bytes]:
        pending = b""
        for chunk in self.chunks(key):
            *whole, pending = (pending + chunk).split(b"\n")
            yield from whole
        if pending:
            yield pending

    def stream(self, key: str, portions: Iterable[bytes], content_type: str) -> None:
        """Uploads the portions as they come, with no more memory than one part of the upload."""
        sink = S3Sink(self._client, self._bucket.name, key, content_type)
        try:
            for portion in portions:
                sink.write(portion)
            sink.close()
        except BaseException:
            sink.abort()
            raise

    def link(self, key: str, seconds: int, file_name: str) -> str:
        return self._bucket.presign_get(key, seconds, disposition=f'attachment; filename="{file_name}"')
