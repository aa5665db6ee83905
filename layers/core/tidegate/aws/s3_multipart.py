"""Multipart uploads: an object that appears only when it is completed."""

from __future__ import annotations

from typing import Any, cast

from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of
from tidegate.aws.s3 import Bucket, StoredObject
from tidegate.errors import Conflict


class MultipartStore(Bucket):
    """The files bucket, for content that this system fetches and stores in parts."""

    def put_part(self, key: str, upload_id: str, number: int, data: bytes | bytearray) -> None:
        self._client.upload_part(
            Bucket=self.name, Key=key, UploadId=upload_id, PartNumber=number, Body=cast(bytes, data)
        )

    def parts(self, key: str, upload_id: str) -> dict[int, StoredObject] | None:
        """The parts that S3 holds, by their numbers; None if there is no such upload."""
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self.name, Key=key, UploadId=upload_id)
        try:
            found = [part for page in pages for part in page.get("Parts", [])]
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise
            return None
        return {part["PartNumber"]: StoredObject(part["Size"], part["ETag"]) for part in found}

    def complete(self, key: str, upload_id: str, count: int | None = None) -> StoredObject:
        """Completes with the first `count` parts that S3 holds, those of earlier invocations included. Idempotent."""
        try:
            etag = self._complete(key, upload_id, count)
        except ClientError as error:
            stored = self.head(key)
            if code_of(error) != "NoSuchUpload" or stored is None:
                raise
            return stored
        stored = self.head(key)
        if stored is None or stored.etag != etag:
            raise Conflict("the object was replaced while its upload was completed: fetch the file again")
        return stored

    def _complete(self, key: str, upload_id: str, count: int | None) -> str:
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self.name, Key=key, UploadId=upload_id)
        parts: Any = [
            {"PartNumber": part["PartNumber"], "ETag": part["ETag"]}
            for page in pages
            for part in page.get("Parts", [])
            if count is None or part["PartNumber"] <= count
        ]
        completed = self._client.complete_multipart_upload(
            Bucket=self.name, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
        )
        return completed["ETag"]

    def read_range(self, key: str, start: int, last: int) -> bytes:
        return bytes(self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{last}")["Body"].read())
