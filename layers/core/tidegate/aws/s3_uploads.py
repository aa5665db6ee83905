"""The files bucket for callers' uploads: parts by presigned URLs, and ranges to verify them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of
from tidegate.aws.s3 import Bucket, StoredObject
from tidegate.errors import Busy, Conflict, Invalid

# S3's error codes for parts that are missing, differ from the request, or are too small.
_BAD_PARTS = {"InvalidPart", "InvalidPartOrder", "EntityTooSmall", "MalformedXML"}

# S3's answers while another call completes the same upload: joining many parts may take longer than an API call.
_STILL_JOINING = {"ConditionalRequestConflict", "OperationAborted"}


class UploadBucket(Bucket):
    def read_range(self, key: str, start: int, last: int, etag: str) -> bytes:
        """Bytes `start` to `last` of the object with this ETag. Conflict if it was replaced or deleted."""
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{last}", IfMatch=etag)
        except ClientError as error:
            if code_of(error) in ("PreconditionFailed", "NoSuchKey", "412", "404"):
                raise Conflict(
                    "the uploaded object was replaced or deleted while it was read: complete the file again"
                ) from error
            raise
        return answer["Body"].read()

    def presign_part(self, key: str, upload_id: str, number: int, seconds: int, length: int | None = None) -> str:
        """A URL for one part. With a length, S3 refuses a part that has another one."""
        params = {"Bucket": self.name, "Key": key, "UploadId": upload_id, "PartNumber": number}
        if length is not None:
            params["ContentLength"] = length
        return self._client.generate_presigned_url("upload_part", Params=params, ExpiresIn=seconds)

    def complete(self, key: str, upload_id: str, parts: Sequence[tuple[int, str]]) -> StoredObject:
        """Completes the upload; an object that exists already is kept. Idempotent. Invalid if S3 lacks a part."""
        listed: Any = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        try:
            self._client.complete_multipart_upload(
                Bucket=self.name, Key=key, UploadId=upload_id, MultipartUpload={"Parts": listed}, IfNoneMatch="*"
            )
        except ClientError as error:
            code = code_of(error)
            if code in _BAD_PARTS:
                raise Invalid(
                    f"S3 refused the parts ({code}): name every part once, with the ETag from the answer to its PUT; "
                    "every part but the last must have part_size bytes"
                ) from error
            if code in _STILL_JOINING and self.head(key) is None:
                raise Busy("S3 is still joining the parts: complete the file again in a few seconds") from error
            if code not in {"NoSuchUpload", "PreconditionFailed", *_STILL_JOINING}:
                raise
        stored = self.head(key)
        if stored is None:
            raise Invalid("S3 no longer has this upload: announce the file again and upload its parts")
        return stored
