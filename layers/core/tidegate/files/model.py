"""Values of the library: a file's record and states, allowed paths, object keys, part sizes and download names."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import quote

from tidegate.common.ids import made_at
from tidegate.records import F, without_control_characters

LONGEST_PATH_BYTES = 1024

# pending: announced, not uploaded yet. verifying: uploaded, being read. coming: an ingest request is to fetch it.
PENDING, VERIFYING, COMING, READY, FAILED = "pending", "verifying", "coming", "ready", "failed"

MIB = 1024 * 1024
# Larger files are uploaded in parts, and verified by a queued request instead of by the call that completes them.
LARGEST_SINGLE_UPLOAD = 64 * MIB
# S3's limits: 10,000 parts, each of 5 MiB to 5 GiB; the last may be smaller.
MOST_PARTS = 10_000
_SMALLEST_PART = 16 * MIB
# The part size for uploads of unknown size. 10,000 such parts are 625 GiB.
_USUAL_PART = 64 * MIB
_DAY = 24 * 3600
# How long parts may be uploaded: 5 TiB take a day at 60 MiB/s, and a week at 9. After that, the bucket's lifecycle rule
# and the sweep abort the upload.
PARTS_SECONDS = 7 * _DAY
# How long an object may still be uploaded: its URL accepts no PUT an hour after the announcement, but a PUT that began
# earlier may take longer.
_UPLOAD_MAY_COME = timedelta(days=1)
# S3's largest object.
LARGEST_FILE = 5 * 1024**4
# The bytes that a function certainly reads and hashes in a second; gives the time that a request may take for a file.
SLOWEST_READING = 32 * MIB


def upload_kept_seconds(*, in_parts: bool) -> int:
    """Returns the seconds after which an upload that is not completed is removed.

    The table's TTL removes the upload's record, and the sweep removes its object.
    """
    return 2 * _DAY if not in_parts else PARTS_SECONDS + 2 * _DAY


@dataclass(frozen=True, slots=True)
class File:
    file_id: Annotated[str, F("id of the file in the library")]
    project_id: str
    biz_id: Annotated[int, F("a number of your choice for a business; recorded, and a filter of lists")]
    app_id: Annotated[int, F("a number of your choice for an application; recorded, and a filter of lists")]
    file_path: Annotated[str, F("path of the file in the library")]
    file_name: Annotated[str, F("name of the file")]
    state: Annotated[
        str, F("`pending` (not uploaded yet), `coming` (a request downloads it), `verifying`, `ready` or `failed`")
    ]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")]
    signature: Annotated[str | None, F("SHA-256 of the content, 64 hexadecimal digits")] = None
    size: Annotated[int | None, F("size in bytes")] = None
    request_id: Annotated[str | None, F("the request that downloads or verifies it")] = None
    error: Annotated[str | None, F("why it failed")] = None
    source_url: str | None = None
    # The subscription that brought it.
    subscription_id: str | None = None
    source_etag: str | None = None
    # Only for an upload in parts.
    upload_id: str | None = None
    part_size: int | None = None
    # The URL to call when a large upload is verified.
    callback: str | None = None


def path_fault(path: str) -> str | None:
    """Returns why a caller's path is refused. None if it is valid."""
    if not path:
        return "must not be empty"
    if len(path.encode("utf-8", "surrogatepass")) > LONGEST_PATH_BYTES:
        return f"must have at most {LONGEST_PATH_BYTES} bytes in UTF-8"
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or char == "\x7f" for char in path):
        return "must not contain control characters"
    if ".." in path.replace("\\", "/").split("/"):
        return "must not contain '..'"
    return None


def _safe_path(value: str) -> str:
    fault = path_fault(value)
    if fault:
        raise ValueError(fault)
    return value


def plain_name(value: str) -> str:
    """Returns a valid file name. ValueError if it has slashes or control characters."""
    if "/" in value or "\\" in value or value in (".", ".."):
        raise ValueError("must be a file name without slashes, not a path")
    return without_control_characters(value)


FilePath = Annotated[str, F(min_length=1, check=_safe_path)]
FileName = Annotated[str, F(min_length=1, max_length=255, check=plain_name)]
Signature = Annotated[str, F(pattern=r"^[0-9a-fA-F]{64}$", check=str.lower)]
# S3's largest object.
FileSize = Annotated[int, F(ge=0, le=5 * 1024**4)]


def name_of(path: str) -> str:
    """Returns the last part of a path. Returns `file` if the path has no such part."""
    return path.rstrip("/").rsplit("/", 1)[-1] or "file"


def upload_object(project_id: str, file_id: str) -> str:
    """Returns the object key of an upload. The file's content stays there. The sweep removes uncompleted uploads."""
    return f"content/{project_id}/{file_id}"


def may_be_put_again(key: str, now: datetime) -> bool:
    """Whether a presigned URL may still upload this object again, after it was deleted."""
    name = key.rsplit("/", 1)[-1]
    announced = made_at(name) if name.startswith("file-") else None
    return announced is not None and now - announced < _UPLOAD_MAY_COME


def part_size_for(size: int | None) -> int:
    """Returns a part size with which the upload fits into 10,000 parts. It is a number of whole MiB, at least 16."""
    if size is None:
        return _USUAL_PART
    needed = -(-size // MOST_PARTS)
    return max(_SMALLEST_PART, -(-needed // MIB) * MIB)


def seconds_to_read(size: int | None) -> int:
    """Returns how many seconds it takes, at most, to read and hash a file of this size."""
    return (size or 0) // SLOWEST_READING


def length_of_part(number: int, size: int, part_size: int) -> int:
    """Returns the number of bytes of a part. The last part has the rest of the file."""
    return min(part_size, size - (number - 1) * part_size)


def part_count(size: int, part_size: int) -> int:
    return max(1, -(-size // part_size))


def upload_headers(size: int | None, signature: str | None) -> dict[str, str]:
    """Returns headers that the PUT of an upload must have. They are signed, so S3 refuses other content or sizes."""
    headers = {"If-None-Match": "*"}
    if size is not None:
        headers["Content-Length"] = str(size)
    if signature is not None:
        headers["x-amz-checksum-sha256"] = base64.b64encode(bytes.fromhex(signature)).decode()
    return headers


def content_object(project_id: str, signature: str) -> str:
    """Returns the object key of content whose record names no object: small content that an earlier version fetched."""
    return f"content/{project_id}/{signature}"


def content_disposition(file_name: str) -> str:
    """Returns a Content-Disposition header (RFC 6266): an ASCII name for old clients, and the real name in UTF-8."""
    plain = "".join(char if 32 <= ord(char) < 127 and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"
