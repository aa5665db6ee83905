"""Lists objects of the bucket, for the archive and the daily sweep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from tidegate.aws.s3 import Bucket

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Found(NamedTuple):
    key: str
    changed_at: datetime


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_at: datetime


class BucketListing(Bucket):
    def __init__(self, client: S3Client, name: str) -> None:
        super().__init__(client, name)
        self._s3 = client

    def list(self, prefix: str) -> Iterator[Found]:
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
            for entry in page.get("Contents", []):
                yield Found(entry["Key"], entry["LastModified"])

    def keys(self, prefix: str) -> Iterator[str]:
        return (found.key for found in self.list(prefix))

    def uploads(self) -> Iterator[Upload]:
        for page in self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.name):
            for entry in page.get("Uploads", []):
                yield Upload(entry["Key"], entry["UploadId"], entry["Initiated"])

    def abort(self, upload: Upload) -> None:
        self._s3.abort_multipart_upload(Bucket=self.name, Key=upload.key, UploadId=upload.upload_id)

    def put(self, key: str, data: bytes) -> None:
        self._s3.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        return bytes(self._s3.get_object(Bucket=self.name, Key=key)["Body"].read())
