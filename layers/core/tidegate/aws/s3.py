"""The files bucket: reads, lists and deletes objects, uploads them in parts, and joins objects on S3."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from aws_lambda_powertools import Logger
from botocore.exceptions import ClientError

from tidegate.aws.table import code_of, status_of
from tidegate.common.sequences import Later
from tidegate.errors import Busy, Conflict, Invalid, RecordNotFound

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
    # When it was stored, to the second; None where nobody asks for it.
    at: datetime | None = field(default=None, compare=False)


class Bucket:
    """The files bucket: objects, presigned URLs, and the begin and abort of multipart uploads."""

    def __init__(self, client: S3Client, name: str) -> None:
        self._client = client
        self.name = name

    def head(self, key: str) -> StoredObject | None:
        """Returns the size and ETag of an object; None if there is no such object."""
        try:
            answer = self._client.head_object(Bucket=self.name, Key=key)
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise
        return StoredObject(answer["ContentLength"], answer["ETag"])

    def read(self, key: str) -> tuple[StoredObject, Iterator[bytes]]:
        """Returns (size and ETag, chunks of the content). RecordNotFound if there is no such object."""
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key)
        except ClientError as error:
            if status_of(error) == 404:
                raise RecordNotFound("the content is gone from the bucket: upload or fetch the file again") from error
            raise
        return StoredObject(answer["ContentLength"], answer["ETag"]), answer["Body"].iter_chunks(CHUNK)

    def content(self, key: str) -> bytes | None:
        """Returns the whole object, which must fit into memory; None if there is no such object."""
        try:
            return self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise

    def put(self, key: str, data: bytes | bytearray) -> str:
        """Stores an object, or replaces it. Returns its ETag."""
        return self._client.put_object(Bucket=self.name, Key=key, Body=cast(bytes, data))["ETag"]

    def put_new(self, key: str, data: bytes) -> None:
        """Stores an object, unless an object with this key exists."""
        try:
            self._client.put_object(Bucket=self.name, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as error:
            # 409: another request stores it at this moment.
            if status_of(error) not in (409, 412):
                raise

    def delete(self, *keys: str) -> None:
        """Deletes the objects. Raises Busy if S3 did not delete some of them.

        S3 answers 200 even then, and lists these objects.
        """
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
        """Ends a multipart upload and deletes its parts. Does nothing if it was completed or aborted before."""
        try:
            self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def presign_put(self, key: str, seconds: int, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """Returns a URL for a PUT with these headers. S3 refuses a PUT that lacks a header or has another value."""
        params: dict[str, Any] = {"Bucket": self.name, "Key": key}
        for name, value in headers.items():
            params[_PARAMETERS[name]] = int(value) if name == "Content-Length" else value
        return self._client.generate_presigned_url("put_object", Params=params, ExpiresIn=seconds)

    def presign_get(self, key: str, seconds: int, *, disposition: str | None = None) -> str:
        params = {"Bucket": self.name, "Key": key}
        if disposition:
            params["ResponseContentDisposition"] = disposition
        return self._client.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)


# The most that S3 lists in one call.
PARTS_LISTED = 1000


class Found(NamedTuple):
    key: str
    changed_at: datetime
    size: int


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_at: datetime


class BucketListing(Bucket):
    """Lists objects of the bucket, for the archive and the daily sweep."""

    def list(self, prefix: str, after: str = "") -> Iterator[Found]:
        """Yields the objects in the order of their keys, starting after the key `after`."""
        begins: dict[str, Any] = {"StartAfter": after} if after else {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, **begins):
            for entry in page.get("Contents", []):
                yield Found(entry["Key"], entry["LastModified"], entry["Size"])

    def folders(self, prefix: str) -> Iterator[str]:
        """Yields the names of the folders directly below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, Delimiter="/")
        for page in pages:
            for entry in page.get("CommonPrefixes", []):
                yield entry["Prefix"].removeprefix(prefix).rstrip("/")

    def keys(self, prefix: str) -> Iterator[str]:
        return (found.key for found in self.list(prefix))

    def uploads(self) -> Iterator[Upload]:
        """Yields the multipart uploads that are neither completed nor aborted."""
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name):
            for entry in page.get("Uploads", []):
                yield Upload(entry["Key"], entry["UploadId"], entry["Initiated"])

    def get_if_any(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise

    def get(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())


class MultipartStore(Bucket):
    """The files bucket, for content that this system fetches and stores in parts.

    The object appears only when its multipart upload is completed.
    """

    def put_part(self, key: str, upload_id: str, number: int, data: bytes | bytearray) -> None:
        self._client.upload_part(
            Bucket=self.name, Key=key, UploadId=upload_id, PartNumber=number, Body=cast(bytes, data)
        )

    def parts(self, key: str, upload_id: str) -> dict[int, StoredObject] | None:
        """Returns the parts that S3 has, by their numbers; None if there is no such upload."""
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self.name, Key=key, UploadId=upload_id)
        try:
            found = [part for page in pages for part in page.get("Parts", [])]
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise
            return None
        return {part["PartNumber"]: StoredObject(part["Size"], part["ETag"], part["LastModified"]) for part in found}

    def complete(self, key: str, upload_id: str, count: int | None = None) -> StoredObject:
        """Completes the upload with its first `count` parts and returns the object. Idempotent.

        The parts may have been uploaded by earlier invocations.
        """
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


# S3's error codes for parts that are missing, differ from the request, or are too small.
_BAD_PARTS = {"InvalidPart", "InvalidPartOrder", "EntityTooSmall", "MalformedXML"}

# S3's answers while another call completes the same upload: joining many parts may take longer than an API call.
_STILL_JOINING = {"ConditionalRequestConflict", "OperationAborted"}


class UploadBucket(Bucket):
    """The files bucket for callers' uploads.

    Callers upload parts by presigned URLs, and ranges are read to verify them.
    """

    def read_range(self, key: str, start: int, last: int, etag: str) -> bytes:
        """Returns the bytes `start` to `last` of the object with this ETag.

        Raises Conflict if the object was replaced or deleted.
        """
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
        """Returns a URL for the PUT of one part. With `length`, S3 refuses a part of another length."""
        params = {"Bucket": self.name, "Key": key, "UploadId": upload_id, "PartNumber": number}
        if length is not None:
            params["ContentLength"] = length
        return self._client.generate_presigned_url("upload_part", Params=params, ExpiresIn=seconds)

    def part_sizes(self, key: str, upload_id: str, first: int) -> dict[int, int]:
        """Returns the sizes of parts by their numbers, from the part `first` on.

        At most PARTS_LISTED parts are returned. Empty if the upload has ended.
        """
        try:
            found: Any = self._client.list_parts(
                Bucket=self.name, Key=key, UploadId=upload_id, PartNumberMarker=first - 1, MaxParts=PARTS_LISTED
            )
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise
            return {}
        return {part["PartNumber"]: part["Size"] for part in found.get("Parts", [])}

    def complete(self, key: str, upload_id: str, parts: Sequence[tuple[int, str]]) -> StoredObject:
        """Completes the upload and returns its object. Idempotent. Raises Invalid if S3 lacks a part.

        An object that exists already is not replaced.
        """
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


# --- part plan
# Plans the parts of one multipart upload from the pieces of a file, most of which are S3 objects already.
#
# Every part but the last must have at least 5 MiB, and S3 can copy a part from an object. So S3 copies large pieces,
# and only small pieces pass through the function, each filled up to 5 MiB with the beginning of the next object.

SMALLEST_PART = 5 * 1024 * 1024
# S3's limit for one upload.
MOST_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """`size` bytes of an object, from `start` on."""

    key: str
    etag: str
    size: int
    start: int = 0

    def head(self, count: int) -> StoredPiece:
        """Returns the first `count` of these bytes."""
        return StoredPiece(self.key, self.etag, count, self.start)

    def rest(self, count: int) -> StoredPiece:
        """Returns these bytes without the first `count`."""
        return StoredPiece(self.key, self.etag, self.size - count, self.start + count)


Piece = bytes | StoredPiece


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of an upload: either bytes of one object that S3 copies (`copied`), or pieces that the function sends."""

    pieces: tuple[Piece, ...]
    copied: bool

    @property
    def size(self) -> int:
        return sum(map(size_of, self.pieces))


def size_of(piece: Piece) -> int:
    return piece.size if isinstance(piece, StoredPiece) else len(piece)


def plan_parts(pieces: Iterable[Piece], smallest: int | None = None) -> list[PlannedPart]:
    """Returns the parts of an upload of these pieces, in order.

    S3 copies some parts from stored objects, and the function sends the others. A part that the function sends has at
    most twice the smallest size, plus one piece.
    """
    smallest = SMALLEST_PART if smallest is None else smallest
    parts: list[PlannedPart] = []
    held: list[Piece] = []
    holding = 0

    def send() -> None:
        nonlocal held, holding
        parts.append(PlannedPart(tuple(held), copied=False))
        held, holding = [], 0

    for piece in pieces:
        size = size_of(piece)
        if not size:
            continue
        lacking = smallest - holding
        if isinstance(piece, StoredPiece) and size >= smallest and not held:
            parts.append(PlannedPart((piece,), copied=True))
        elif isinstance(piece, StoredPiece) and held and size - lacking >= smallest:
            held.append(piece.head(lacking))
            send()
            parts.append(PlannedPart((piece.rest(lacking),), copied=True))
        else:
            held.append(piece)
            holding += size
            if holding >= smallest:
                send()
    if held:
        send()
    if len(parts) > MOST_PARTS:
        raise ValueError(f"the file would have {len(parts):,} parts, but S3 accepts {MOST_PARTS:,}: use larger pieces")
    return parts


_PARALLEL_PARTS = 16


def assembled(client: S3Client, bucket: str, key: str, content_type: str, parts: Sequence[PlannedPart]) -> int:
    """Writes an object of these parts and returns its size.

    The object appears only when all parts are stored. If a part fails, the upload is aborted.
    """
    place: dict[str, Any] = {"Bucket": bucket, "Key": key}
    if len(parts) <= 1 and not any(part.copied for part in parts):
        body = _bytes(client, bucket, parts[0]) if parts else b""
        client.put_object(**place, Body=body, ContentType=content_type)
        return len(body)
    upload = place | {"UploadId": client.create_multipart_upload(**place, ContentType=content_type)["UploadId"]}

    def send(number: int, part: PlannedPart) -> Any:
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
    if not isinstance(piece, StoredPiece):
        raise TypeError(f"S3 can copy only a part of an object, not {type(piece).__name__}")
    copied = client.upload_part_copy(
        **upload,
        PartNumber=number,
        CopySource={"Bucket": bucket, "Key": piece.key},
        CopySourceIfMatch=piece.etag,
        CopySourceRange=f"bytes={piece.start}-{piece.start + piece.size - 1}",
    )
    return copied["CopyPartResult"]["ETag"]


def _bytes(client: S3Client, bucket: str, part: PlannedPart) -> bytes:
    return b"".join(_read(client, bucket, piece) if isinstance(piece, StoredPiece) else piece for piece in part.pieces)


def _read(client: S3Client, bucket: str, piece: StoredPiece) -> bytes:
    span = f"bytes={piece.start}-{piece.start + piece.size - 1}"
    answer = client.get_object(Bucket=bucket, Key=piece.key, Range=span, IfMatch=piece.etag)
    return answer["Body"].read()


# S3 accepts 10,000 parts in one upload: with parts of this size, files of up to 80 GB.
PART_BYTES = 8 * 1024 * 1024
# The size of a part that waits for bytes: it is kept in memory, so it has S3's smallest size.
WAITING_BYTES = 5 * 1024 * 1024


class S3Sink:
    """Streams a file into the bucket as its chunks come. A small file is stored by one put, others by multipart upload.

    A part that contains a `Later` waits until the bytes of the `Later` are known. Other parts do not wait.
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
