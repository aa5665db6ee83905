"""Lists objects of the bucket, for the archive and the daily sweep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tidegate.aws.s3 import Bucket


class Found(NamedTuple):
    key: str
    changed_at: datetime


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_at: datetime


class BucketListing(Bucket):
    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        """Objects in the order of their keys, starting after the key `after`."""
        begins: dict[str, Any] = {"StartAfter": after} if after else {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, **begins):
            for entry in page.get("Contents", []):
                yield Found(entry["Key"], entry["LastModified"])

    def keys(self, prefix: str) -> Iterator[str]:
        return (found.key for found in self.list(prefix))

    def uploads(self) -> Iterator[Upload]:
        """Multipart uploads that are neither completed nor aborted."""
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name):
            for entry in page.get("Uploads", []):
                yield Upload(entry["Key"], entry["UploadId"], entry["Initiated"])

    def get(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())
