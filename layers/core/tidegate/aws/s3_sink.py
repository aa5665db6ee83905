"""A file streamed into the bucket by multipart upload; a small one by a single put."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# S3 takes 10,000 parts of one upload: parts of this size make files of up to 80 GB.
PART_BYTES = 8 * 1024 * 1024


class S3Sink:
    def __init__(self, client: S3Client, bucket: str, key: str, content_type: str) -> None:
        self._client = client
        self._place: dict[str, Any] = {"Bucket": bucket, "Key": key}
        self._content_type = content_type
        self._upload_id = ""
        self._parts: list[Any] = []
        self._held = bytearray()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._held += data
        self.size += len(data)
        while len(self._held) >= PART_BYTES:
            with memoryview(self._held) as held:
                part = bytes(held[:PART_BYTES])
            del self._held[:PART_BYTES]
            self._send(part)

    def close(self) -> None:
        if not self._upload_id:
            self._client.put_object(**self._place, Body=bytes(self._held), ContentType=self._content_type)
            return
        if self._held:
            self._send(bytes(self._held))
        self._client.complete_multipart_upload(
            **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
        )

    def abort(self) -> None:
        if self._upload_id:
            self._client.abort_multipart_upload(**self._place, UploadId=self._upload_id)

    def _send(self, data: bytes) -> None:
        if not self._upload_id:
            begun = self._client.create_multipart_upload(**self._place, ContentType=self._content_type)
            self._upload_id = begun["UploadId"]
        number = len(self._parts) + 1
        sent = self._client.upload_part(**self._place, UploadId=self._upload_id, PartNumber=number, Body=data)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
