"""Reads an uploaded object once, for its SHA-256 and the digests of its pieces. `reading` does it in several turns."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_uploads import UploadBucket
from tidegate.errors import Busy
from tidegate.files.model import MIB, File
from tidegate.files.pieces import SMALLEST_FILE, PieceDigests, PieceList

RANGE = 8 * MIB
# Ranges in flight (16 × 8 MiB = 128 MiB): one connection to S3 transfers 50 to 90 MB/s, less than can be hashed.
AHEAD = 16
_TRIES = 4
_LOOK_SECONDS = 1.0

# Called with the number of bytes read so far; it may raise to stop the reading.
Pulse = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Checked:
    size: int
    etag: str
    signature: str
    pieces: PieceList | None


def check(bucket: UploadBucket, key: str, found: StoredObject, pulse: Pulse = lambda _: None) -> Checked:
    """Reads the object and returns its digests. At most AHEAD ranges are in memory, however large the object is."""
    hashed = hashlib.sha256()
    digests = PieceDigests(found.size) if found.size >= SMALLEST_FILE else None
    for done, chunk in in_order(bucket, key, found, pulse):
        hashed.update(chunk)
        if digests:
            digests.update(chunk)
        pulse(done)
    return Checked(found.size, found.etag, hashed.hexdigest(), digests.finish() if digests else None)


def fault_of(file: File, size: int, signature: str) -> str | None:
    """How the content differs from what was announced; None if it does not."""
    if file.size is not None and file.size != size:
        return f"the content has {size} bytes, but {file.size} were announced"
    if file.signature is not None and file.signature != signature:
        return f"the content's SHA-256 is {signature}, but {file.signature} was announced"
    return None


def in_order(
    bucket: UploadBucket, key: str, found: StoredObject, pulse: Pulse, first: int = 0
) -> Generator[tuple[int, bytes]]:
    """(bytes up to the end of the range, the range) in order, from byte `first` on. The ranges are read in parallel."""

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
        raise Busy(f"S3 sent too few bytes of the range from byte {start}, {_TRIES} times: complete the file again")

    def take() -> tuple[int, bytes]:
        start, future = window.popleft()
        while not wait([future], timeout=_LOOK_SECONDS).done:
            pulse(start)
        got = future.result()
        return start + len(got), got

    window: deque[tuple[int, Future[bytes]]] = deque()
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="verify") as pool:
        try:
            for start in range(first, found.size, RANGE):
                window.append((start, pool.submit(read, start)))
                if len(window) == AHEAD:
                    yield take()
            while window:
                yield take()
        finally:
            for _, future in window:
                future.cancel()
