"""Joins many objects into one: S3 copies the large pieces, and small ones pass through this function."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidegate.aws.part_plan import Part, Piece, Stored

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PARALLEL_PARTS = 16


def assembled(client: S3Client, bucket: str, key: str, content_type: str, parts: Sequence[Part]) -> int:
    """Writes the object and returns its size. It appears when all parts are stored; a failure aborts the upload."""
    place: dict[str, Any] = {"Bucket": bucket, "Key": key}
    if len(parts) <= 1 and not any(part.copied for part in parts):
        body = _bytes(client, bucket, parts[0]) if parts else b""
        client.put_object(**place, Body=body, ContentType=content_type)
        return len(body)
    upload = place | {"UploadId": client.create_multipart_upload(**place, ContentType=content_type)["UploadId"]}

    def send(number: int, part: Part) -> Any:
        if part.copied:
            (piece,) = part.pieces
            etag = _copied(client, bucket, upload, number, piece)
        else:
            etag = client.upload_part(**upload, PartNumber=number, Body=_bytes(client, bucket, part))["ETag"]
        return {"PartNumber": number, "ETag": etag}

    try:
        with ThreadPoolExecutor(_PARALLEL_PARTS) as threads:
            sent = list(threads.map(send, range(1, len(parts) + 1), parts))
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": sent})
    except BaseException:
        # The upload is gone if it was completed and only the answer was lost.
        with suppress(client.exceptions.NoSuchUpload):
            client.abort_multipart_upload(**upload)
        raise
    return sum(part.size for part in parts)


def _copied(client: S3Client, bucket: str, upload: dict[str, Any], number: int, piece: Piece) -> str:
    if not isinstance(piece, Stored):
        raise TypeError(f"S3 can copy only a part of an object, not {type(piece).__name__}")
    copied = client.upload_part_copy(
        **upload,
        PartNumber=number,
        CopySource={"Bucket": bucket, "Key": piece.key},
        CopySourceIfMatch=piece.etag,
        CopySourceRange=f"bytes={piece.start}-{piece.start + piece.size - 1}",
    )
    return copied["CopyPartResult"]["ETag"]


def _bytes(client: S3Client, bucket: str, part: Part) -> bytes:
    return b"".join(_read(client, bucket, piece) if isinstance(piece, Stored) else piece for piece in part.pieces)


def _read(client: S3Client, bucket: str, piece: Stored) -> bytes:
    span = f"bytes={piece.start}-{piece.start + piece.size - 1}"
    answer = client.get_object(Bucket=bucket, Key=piece.key, Range=span, IfMatch=piece.etag)
    return answer["Body"].read()
