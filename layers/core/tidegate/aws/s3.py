"""The files bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from aws_lambda_powertools import Logger
from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of, status_of
from tidegate.errors import Busy, RecordNotFound

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = Logger(service="tidegate", child=True)

CHUNK = 1024 * 1024
NO_HEADERS: Mapping[str, str] = {}
_DELETE_LIMIT = 1000
_DELETE_PAUSES = (0.1, 0.5, None)
# The headers that a presigned PUT can require, by the names that boto3 has for them.
_PARAMETERS = {
    "Content-Length": "ContentLength",
    "If-None-Match": "IfNoneMatch",
    "x-amz-checksum-sha256": "ChecksumSHA256",
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    size: int
    etag: str


class Bucket:
    def __init__(self, client: S3Client, name: str) -> None:
        self._client = client
        self.name = name

    def head(self, key: str) -> StoredObject | None:
        """Its size and ETag; None if there is no such object."""
        try:
            answer = self._client.head_object(Bucket=self.name, Key=key)
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise
        return StoredObject(answer["ContentLength"], answer["ETag"])

    def read(self, key: str) -> tuple[StoredObject, Iterator[bytes]]:
        """Its size, its ETag and its content in chunks. RecordNotFound if there is no such object."""
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key)
        except ClientError as error:
            if status_of(error) == 404:
                raise RecordNotFound("the content is gone from the bucket: upload or fetch the file again") from error
            raise
        return StoredObject(answer["ContentLength"], answer["ETag"]), answer["Body"].iter_chunks(CHUNK)

    def put(self, key: str, data: bytes | bytearray) -> str:
        """Stores an object, or replaces it. Returns its ETag."""
        return self._client.put_object(Bucket=self.name, Key=key, Body=cast(bytes, data))["ETag"]

    def delete(self, *keys: str) -> None:
        """Deletes the objects. Busy if some remain: S3 answers 200 and lists those that it did not delete."""
        for start in range(0, len(keys), _DELETE_LIMIT):
            self._delete(keys[start : start + _DELETE_LIMIT])

    def _delete(self, keys: Sequence[str]) -> None:
        for pause in _DELETE_PAUSES:
            objects: Any = [{"Key": key} for key in keys]
            answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": objects, "Quiet": True})
            keys = [error["Key"] for error in answer.get("Errors", [])]
            if not keys:
                return
            if pause:
                time.sleep(pause)
        logger.warning("S3 did not delete objects", count=len(keys), keys=keys[:10])
        raise Busy(f"S3 did not delete {len(keys)} objects: try again in a few seconds")

    def begin_upload(self, key: str) -> str:
        """Begins a multipart upload and returns its id. The object appears when the upload is completed."""
        return self._client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Gives up a multipart upload and its parts. Does nothing if it was completed or aborted before."""
        try:
            self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def presign_put(self, key: str, seconds: int, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """A URL for one PUT with exactly these headers: S3 refuses a PUT without them or with other values."""
        params: dict[str, Any] = {"Bucket": self.name, "Key": key}
        for name, value in headers.items():
            params[_PARAMETERS[name]] = int(value) if name == "Content-Length" else value
        return self._client.generate_presigned_url("put_object", Params=params, ExpiresIn=seconds)

    def presign_get(self, key: str, seconds: int, *, disposition: str | None = None) -> str:
        params = {"Bucket": self.name, "Key": key}
        if disposition:
            params["ResponseContentDisposition"] = disposition
        return self._client.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
