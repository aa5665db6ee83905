"""Reads an uploaded object once: its SHA-256, and the digests of its pieces, from the same pass."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_uploads import UploadBucket
from tidegate.errors import Busy
from tidegate.files.model import MIB, File
from tidegate.files.pieces import SMALLEST_FILE, PieceDigests, PieceList

RANGE = 8 * MIB
# Ranges in flight: one connection to S3 carries 50 to 90 MB/s, a hash takes in more. 16 of 8 MiB are 128 MiB.
AHEAD = 16
_TRIES = 4
_LOOK_SECONDS = 1.0

# Called with the bytes that were read so far; raises to stop the reading.
Pulse = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Checked:
    size: int
    etag: str
    signature: str
    pieces: PieceList | None


def check(bucket: UploadBucket, key: str, found: StoredObject, pulse: Pulse = lambda _: None) -> Checked:
    """Memory stays flat however large the object is: at most AHEAD ranges exist at once."""
    hashed = hashlib.sha256()
    digests = PieceDigests(found.size) if found.size >= SMALLEST_FILE else None
    for done, chunk in _in_order(bucket, key, found, pulse):
        hashed.update(chunk)
        if digests:
            digests.update(chunk)
        pulse(done)
    return Checked(found.size, found.etag, hashed.hexdigest(), digests.finish() if digests else None)


def fault_of(file: File, size: int, signature: str) -> str | None:
    """What differs from what was announced; None if nothing does."""
    if file.size is not None and file.size != size:
        return f"{size} bytes came, {file.size} were announced"
    if file.signature is not None and file.signature != signature:
        return f"the content's SHA-256 is {signature}, {file.signature} was announced"
    return None


def _in_order(bucket: UploadBucket, key: str, found: StoredObject, pulse: Pulse) -> Iterator[tuple[int, bytes]]:
    """The object's ranges from first to last, read side by side, each with the number of bytes up to its end."""

    def read(start: int) -> bytes:
        last = min(start + RANGE, found.size) - 1
        for attempt in range(_TRIES):
            try:
                got = bucket.read_range(key, start, last, found.etag)
            except (BotoCoreError, ClientError, OSError):
                if attempt == _TRIES - 1:
                    raise
            else:
                if len(got) == last - start + 1:
                    return got
        raise Busy(f"S3 cut the range from byte {start} {_TRIES} times")

    def take() -> tuple[int, bytes]:
        start, future = window.popleft()
        while not wait([future], timeout=_LOOK_SECONDS).done:
            pulse(start)
        got = future.result()
        return start + len(got), got

    window: deque[tuple[int, Future[bytes]]] = deque()
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="verify") as pool:
        try:
            for start in range(0, found.size, RANGE):
                window.append((start, pool.submit(read, start)))
                if len(window) == AHEAD:
                    yield take()
            while window:
                yield take()
        finally:
            for _, future in window:
                future.cancel()
