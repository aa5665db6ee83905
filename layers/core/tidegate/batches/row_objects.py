"""Rows of files in the bucket: streams, byte ranges, and the indexes kept beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.aws.s3 import Bucket
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

    def get(self, key: str) -> bytes | None:
        try:
            return b"".join(self.chunks(key))
        except RecordNotFound:
            return None

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket.name, Key=key, Body=data)
