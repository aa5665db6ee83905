"""Streams a file into the bucket: by multipart upload, or by one put if it is small."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidegate.common.later import Later

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# S3 accepts 10,000 parts in one upload: with parts of this size, files of up to 80 GB.
PART_BYTES = 8 * 1024 * 1024
# A part that has to wait is held in memory, so it has S3's smallest size.
WAITING_BYTES = 5 * 1024 * 1024


class S3Sink:
    """Writes chunks to S3 as they come.

    A part with bytes that are not known yet (a `Later`) is held back until they are; later parts are not.
    """

    def __init__(self, client: S3Client, bucket: str, key: str, content_type: str) -> None:
        self._client = client
        self._place: dict[str, Any] = {"Bucket": bucket, "Key": key}
        self._content_type = content_type
        self._upload_id = ""
        self._etags: dict[int, str] = {}
        self._held: list[bytearray | Later] = []
        self._held_bytes = 0
        self._waiting: dict[int, list[bytearray | Later]] = {}
        self._last_part = 0
        self.size = 0

    def write(self, data: bytes | Later) -> None:
        if isinstance(data, Later):
            self._held.append(data)
        elif self._held and not isinstance(self._held[-1], Later):
            self._held[-1] += data
        else:
            self._held.append(bytearray(data))
        self._held_bytes += len(data)
        if self._held_bytes >= PART_BYTES or (self._held_bytes >= WAITING_BYTES and not _is_complete(self._held)):
            self._end_part()
            self._send_complete_parts()

    def close(self) -> None:
        if not self._last_part:
            body = b"".join(self._held)
            self.size = len(body)
            self._client.put_object(**self._place, Body=body, ContentType=self._content_type)
            return
        if self._held:
            self._end_part()
        self._send_complete_parts()
        parts: Any = [{"PartNumber": number, "ETag": self._etags[number]} for number in sorted(self._etags)]
        self._client.complete_multipart_upload(
            **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": parts}
        )

    def abort(self) -> None:
        if self._upload_id:
            # The upload is gone if it was completed and only the answer was lost.
            with suppress(self._client.exceptions.NoSuchUpload):
                self._client.abort_multipart_upload(**self._place, UploadId=self._upload_id)

    def _end_part(self) -> None:
        self._last_part += 1
        self._waiting[self._last_part] = self._held
        self._held, self._held_bytes = [], 0

    def _send_complete_parts(self) -> None:
        for number, chunks in list(self._waiting.items()):
            if _is_complete(chunks):
                del self._waiting[number]
                body = b"".join(chunks)
                chunks.clear()
                self._send(body, number)

    def _send(self, data: bytes, number: int) -> None:
        if not self._upload_id:
            begun = self._client.create_multipart_upload(**self._place, ContentType=self._content_type)
            self._upload_id = begun["UploadId"]
        sent = self._client.upload_part(**self._place, UploadId=self._upload_id, PartNumber=number, Body=data)
        self._etags[number] = sent["ETag"]
        self.size += len(data)


def _is_complete(chunks: list[bytearray | Later]) -> bool:
    return all(chunk.is_filled for chunk in chunks if isinstance(chunk, Later))
