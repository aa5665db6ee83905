"""Files of the library: what a path may be, where content lies, how a browser is told its name."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

LONGEST_PATH_BYTES = 1024

# Announced and not yet uploaded; uploaded and being read; on its way by an ingest; whole; never to come.
PENDING, VERIFYING, COMING, READY, FAILED = "pending", "verifying", "coming", "ready", "failed"

MIB = 1024 * 1024
# Larger files come in parts, and are verified by a queued step instead of within the call that completes them.
LARGEST_SINGLE_UPLOAD = 64 * MIB
# S3's own limits: 10,000 parts, each of 5 MiB to 5 GiB, but for the last.
MOST_PARTS = 10_000
_SMALLEST_PART = 16 * MIB
# For an upload of unknown size: enough for 625 GiB.
_USUAL_PART = 64 * MIB


@dataclass(frozen=True, slots=True)
class File:
    file_id: str
    project_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    state: str
    created_at: str
    signature: str | None = None
    size: int | None = None
    request_id: str | None = None
    error: str | None = None
    source_url: str | None = None
    source_etag: str | None = None
    # Of an upload in parts, and the URL that is told of a file which is verified later.
    upload_id: str | None = None
    part_size: int | None = None
    callback: str | None = None

    def shown(self) -> dict[str, Any]:
        names = ("file_id", "biz_id", "app_id", "file_path", "file_name", "signature", "size", "state", "created_at")
        optional = {name: getattr(self, name) for name in ("request_id", "error") if getattr(self, name)}
        return {name: getattr(self, name) for name in names} | optional


def path_fault(path: str) -> str | None:
    """Why a path given by a caller is refused; None if it is fine."""
    if not path:
        return "must not be empty"
    if len(path.encode("utf-8", "surrogatepass")) > LONGEST_PATH_BYTES:
        return f"must be at most {LONGEST_PATH_BYTES} bytes"
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or char == "\x7f" for char in path):
        return "must not hold control characters"
    if ".." in path.replace("\\", "/").split("/"):
        return "must not hold '..'"
    return None


def name_of(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1] or "file"


def upload_object(project_id: str, file_id: str) -> str:
    """Where an upload lands, and where it stays: content is not copied. What was never completed is swept."""
    return f"content/{project_id}/{file_id}"


def part_size_for(size: int | None) -> int:
    """Whole mebibytes, at least 16, so that the upload fits into 10,000 parts."""
    if size is None:
        return _USUAL_PART
    needed = -(-size // MOST_PARTS)
    return max(_SMALLEST_PART, -(-needed // MIB) * MIB)


def part_count(size: int, part_size: int) -> int:
    return max(1, -(-size // part_size))


def upload_headers(size: int | None, signature: str | None) -> dict[str, str]:
    """What the PUT of an upload must carry. All of it is signed, so that the bucket refuses other bytes, or more."""
    headers = {"If-None-Match": "*"}
    if size is not None:
        headers["Content-Length"] = str(size)
    if signature is not None:
        headers["x-amz-checksum-sha256"] = base64.b64encode(bytes.fromhex(signature)).decode()
    return headers


def content_object(project_id: str, signature: str) -> str:
    """Where small content lies that an ingest brought; of other content its record names the object."""
    return f"content/{project_id}/{signature}"


def content_disposition(file_name: str) -> str:
    """RFC 6266: a plain name for old clients and the true one in UTF-8."""
    plain = "".join(char if 32 <= ord(char) < 127 and char not in '"\\%' else "_" for char in file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"
