"""Local files: their SHA-256, and their upload to a presigned URL in one request."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import urllib3
from urllib3.exceptions import HTTPError

from tidegate_client.errors import LinkExpired, TransferError

Progress = Callable[[int, int | None], None]
CHUNK = 256 * 1024
UPLOAD_ATTEMPTS = 4


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def upload(
    pool: urllib3.PoolManager,
    url: str,
    source: Path,
    *,
    headers: Mapping[str, str] | None = None,
    on_progress: Progress | None = None,
) -> None:
    """Uploads the file with one PUT.

    A PUT cannot be resumed: it is sent again after a broken connection, a 5xx, or a 409 (another PUT at the same time).
    """
    size = source.stat().st_size
    failure: Exception | None = None
    for attempt in range(UPLOAD_ATTEMPTS):
        if attempt:
            time.sleep(min(0.3 * 2**attempt, 5))
        try:
            response = pool.request(
                "PUT",
                url,
                body=_chunks(source, size, on_progress),
                headers={"Content-Length": str(size), **(headers or {})},
                timeout=urllib3.Timeout(connect=5, read=120),
                retries=False,
            )
        except HTTPError as error:
            failure = error
            continue
        # 412: an earlier attempt has stored the object, and its answer was lost. `complete` checks the bytes.
        if response.status < 300 or response.status == 412:
            return
        if response.status == 403:
            raise LinkExpired(
                f"S3 refused the URL for the upload of {source} (HTTP 403): it has expired; upload the file again",
                status=403,
            )
        if response.status < 500 and response.status != 409:
            raise TransferError(f"S3 refused the upload of {source} (HTTP {response.status})", status=response.status)
        failure = TransferError(f"HTTP {response.status}", status=response.status)
    raise TransferError(f"the upload of {source} failed {UPLOAD_ATTEMPTS} times: {failure}") from failure


def _chunks(source: Path, size: int, on_progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    with source.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
            sent += len(chunk)
            if on_progress:
                on_progress(sent, size)
