"""Reads stored content once, for its digest and its lists of pieces and blocks. Large content takes several turns."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.s3 import StoredObject, UploadBucket
from tidegate.common.sha256 import Sha256
from tidegate.errors import Busy, Conflict, DomainError
from tidegate.files.model import LARGEST_SINGLE_UPLOAD, MIB, File, seconds_to_read

# --- blocks
# Blocks: the units of a new file that a host looks for in an older version of it.
#
# A piece has 16 blocks. The list of a file's blocks has one entry of 36 bytes for each: the offset of the block's probe
# in the block (4 bytes), the probe (16 bytes of its content), and the first half of the block's SHA-256. A host
# searches its old file for the probe, at any offset, and then compares the digest. So bytes that were inserted or
# removed before a block do not matter. The probe replaces rsync's weak checksum: in Python, a search for bytes is
# faster than a rolling checksum.

BLOCKS_A_PIECE = 16
PROBE_BYTES = 16
BLOCK_DIGEST_BYTES = 16
ENTRY_BYTES = 4 + PROBE_BYTES + BLOCK_DIGEST_BYTES
NO_PROBE = b"\xff" * 4 + bytes(PROBE_BYTES)
# A probe must have this many different byte values: a run of one byte would be found in many places.
_DIFFERENT = 6
_STEP = 512


class BlockDigests:
    """Makes the list of a file's blocks. Call `update` with the whole file in order, in chunks of any length."""

    def __init__(self, piece_size: int, entries: bytes = b"") -> None:
        """`entries`: the list of the blocks that were read before. Give `update` the bytes after these blocks."""
        self._size = piece_size // BLOCKS_A_PIECE
        self._entries = [entries]
        self._block = bytearray()

    def update(self, chunk: bytes | memoryview) -> None:
        view = memoryview(chunk)
        while view:
            room = self._size - len(self._block)
            self._block += view[:room]
            view = view[room:]
            if len(self._block) == self._size:
                self._close()

    def _close(self) -> None:
        # Hash the block without copying it: that of a file of 5 TiB has 128 MiB.
        self._entries.append(_probe(self._block) + hashlib.sha256(self._block).digest()[:BLOCK_DIGEST_BYTES])
        self._block.clear()

    def finish(self) -> bytes:
        """Returns the list of all blocks so far. After that, call `update` only if the last block was whole."""
        if self._block:
            self._close()
        return b"".join(self._entries)


def _probe(block: bytearray) -> bytes:
    """Returns the offset and the bytes of the block's first suitable probe. NO_PROBE if the block has no such probe."""
    for at in range(0, len(block) - PROBE_BYTES + 1, _STEP):
        probe = block[at : at + PROBE_BYTES]
        if len(set(probe)) >= _DIFFERENT:
            return at.to_bytes(4) + bytes(probe)
    return NO_PROBE


# --- pieces
# Pieces: the units in which hosts send a file to each other, each with its own SHA-256.
#
# The list of a file's pieces is just their digests in order, 32 bytes each. The file size and the piece size give their
# number.

SMALLEST_PIECE, LARGEST_PIECE = MIB, 16 * MIB
PIECE_DIGEST_BYTES = 32
# Smaller files come from S3 only: a swarm would be slower.
SMALLEST_FILE = 8 * MIB
_WANTED_PIECES = 512
# Files above 64 GiB have pieces of more than 16 MiB, so that bitmaps and lists stay small.
_MOST_PIECES = 4096


def piece_size(size: int) -> int:
    """Returns the size of a piece, a power of two: 1 MiB for small files, up to 16 MiB for large ones.

    Files from 256 MiB to 8 GiB have 256 to 512 pieces. For files above 64 GiB the pieces are larger than 16 MiB, so
    that there are at most 4,096.
    """
    wanted = _power_of_two(-(-size // _WANTED_PIECES))
    needed = _power_of_two(-(-size // _MOST_PIECES))
    return max(needed, min(LARGEST_PIECE, max(SMALLEST_PIECE, wanted)))


def pieces_object(project_id: str, signature: str) -> str:
    """Returns the object key of a content's list of pieces."""
    return f"pieces/{project_id}/{signature}"


def blocks_object(project_id: str, signature: str) -> str:
    """Returns the object key of a content's list of blocks. Hosts with an older version of the file use the list."""
    return f"pieces/{project_id}/{signature}.blocks"


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


class PieceList(NamedTuple):
    """The lists of a content: `digests` of its pieces, and `blocks`, the list of the blocks within them."""

    piece_size: int
    digests: bytes
    blocks: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.digests).hexdigest()

    @property
    def blocks_sha256(self) -> str:
        return hashlib.sha256(self.blocks).hexdigest()

    def objects(self, project_id: str, signature: str) -> dict[str, bytes]:
        """Returns the objects to store, by key."""
        return {pieces_object(project_id, signature): self.digests, blocks_object(project_id, signature): self.blocks}


class PieceDigests:
    """Makes the lists of a file's pieces and blocks. Call `update` with the whole file in order, in any chunks."""

    def __init__(self, size: int, digests: bytes = b"", blocks: bytes = b"") -> None:
        """`digests`, `blocks`: the lists of the pieces read before. Give `update` the bytes after these pieces."""
        self.piece_size = piece_size(size)
        self._digests = [digests]
        self._hashed = hashlib.sha256()
        self._room = self.piece_size
        self._blocks = BlockDigests(self.piece_size, blocks)

    def update(self, chunk: bytes) -> None:
        self._blocks.update(chunk)
        view = memoryview(chunk)
        while view:
            head, view = view[: self._room], view[self._room :]
            self._hashed.update(head)
            self._room -= len(head)
            if not self._room:
                self._close()

    def _close(self) -> None:
        self._digests.append(self._hashed.digest())
        self._hashed = hashlib.sha256()
        self._room = self.piece_size

    @property
    def between_pieces(self) -> bool:
        return self._room == self.piece_size

    def finish(self) -> PieceList:
        """Returns the lists of all bytes so far. After that, call `update` only if the last piece was whole."""
        if not self.between_pieces:
            self._close()
        return PieceList(self.piece_size, b"".join(self._digests), self._blocks.finish())


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
    """Reads an object and returns its digests. At most AHEAD ranges are in memory, however large the object is."""
    hashed = hashlib.sha256()
    digests = PieceDigests(found.size) if found.size >= SMALLEST_FILE else None
    for done, chunk in in_order(bucket, key, found, pulse):
        hashed.update(chunk)
        if digests:
            digests.update(chunk)
        pulse(done)
    return Checked(found.size, found.etag, hashed.hexdigest(), digests.finish() if digests else None)


def fault_of(file: File, size: int, signature: str) -> str | None:
    """Returns how the content differs from what was announced. None if it does not differ."""
    if file.size is not None and file.size != size:
        return f"the content has {size} bytes, but {file.size} were announced"
    if file.signature is not None and file.signature != signature:
        return f"the content's SHA-256 is {signature}, but {file.signature} was announced"
    return None


def in_order(
    bucket: UploadBucket, key: str, found: StoredObject, pulse: Pulse, first: int = 0
) -> Generator[tuple[int, bytes]]:
    """Yields (offset of the range's end, bytes of the range) in order, from byte `first` on.

    Reads several ranges in parallel.
    """

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

    def next_range() -> tuple[int, bytes]:
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
                    yield next_range()
            while window:
                yield next_range()
        finally:
            for _, future in window:
                future.cancel()


class RunningDigests:
    """The digests of an object's first `offset` bytes."""

    def __init__(self, found: StoredObject, *, pieces: bool) -> None:
        self.found = found
        self.offset = 0
        self._hashed = Sha256()
        self._pieces = PieceDigests(found.size) if pieces and found.size >= SMALLEST_FILE else None

    def update(self, chunk: bytes) -> None:
        self._hashed.update(chunk)
        if self._pieces:
            self._pieces.update(chunk)
        self.offset += len(chunk)

    def finish(self) -> Checked:
        lists = self._pieces.finish() if self._pieces else None
        return Checked(self.found.size, self.found.etag, self._hashed.hexdigest(), lists)

    def save(self) -> bytes | None:
        """Returns the state for `restore`: a line of JSON, then the lists (2.5 MB at most).

        None if the bytes so far end within a piece: the state cannot be saved there.
        """
        if self._pieces and not self._pieces.between_pieces:
            return None
        head = {
            "size": self.found.size,
            "etag": self.found.etag,
            "offset": self.offset,
            "sha256": self._hashed.save().hex(),
        }
        lists = self._pieces.finish() if self._pieces else None
        return json.dumps(head).encode() + b"\n" + (lists.digests + lists.blocks if lists else b"")

    @classmethod
    def restore(cls, data: bytes, *, pieces: bool) -> RunningDigests:
        """Returns the saved digests. Their `found` is the object as it was when they were saved.

        ValueError, KeyError or TypeError if `data` is malformed.
        """
        line, _, lists = data.partition(b"\n")
        head = json.loads(line)
        restored = cls(StoredObject(int(head["size"]), str(head["etag"])), pieces=pieces)
        restored.offset = int(head["offset"])
        restored._hashed = Sha256.restore(bytes.fromhex(head["sha256"]), restored.offset)
        if restored._pieces:
            count, rest = divmod(restored.offset, restored._pieces.piece_size)
            end = count * PIECE_DIGEST_BYTES
            if rest or len(lists) != end + count * BLOCKS_A_PIECE * ENTRY_BYTES:
                raise ValueError(f"the lists of {restored.offset} bytes have {len(lists)} bytes")
            restored._pieces = PieceDigests(restored.found.size, lists[:end], lists[end:])
        return restored


# --- reading
# Reads an object in turns: if one invocation cannot finish, the next one continues from the last save.
#
# The digests so far are saved as one object, so a crash leaves the old ones or the new ones. They belong to a request
# or to a content: the daily sweep deletes what is left after the request has ended or the content is verified.

logger = Logger(service="tidegate", child=True)

OF_REQUESTS, OF_CONTENTS = "verifying/requests/", "verifying/contents/"
# The time between two saves: a killed function repeats no more than this. Ordinary files take less, without a save.
SAVE_SECONDS = 60.0
# A turn ends when fewer seconds of its invocation are left, and the time for one more piece: digests can be saved only
# at the end of a piece, which has 2 GiB if the file has 5 TiB.
RESERVE_SECONDS = 60.0


def saved_for_request(project_id: str, request_id: str) -> str:
    return f"{OF_REQUESTS}{project_id}/{request_id}"


def saved_for_content(project_id: str, signature: str) -> str:
    return f"{OF_CONTENTS}{project_id}/{signature}"


@dataclass(frozen=True, slots=True)
class ReadingTurn:
    """One invocation's part of reading an object. `saved`: the key under which the digests are saved between turns.

    `until`: the end of the invocation by the monotonic clock.
    """

    saved: str
    until: float
    pulse: Pulse = lambda _: None


class TurnReader:
    def __init__(self, bucket: UploadBucket, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._monotonic = monotonic
        # Keys of saved digests that this process read or wrote: ordinary files have none, and need no deletion.
        self._present: set[str] = set()

    def check(self, key: str, found: StoredObject, turn: ReadingTurn, *, pieces: bool = True) -> Checked | None:
        """Reads the object and returns its digests. None if the time is over, and another turn must continue.

        Conflict if the object was replaced since the first turn. Call `forget` once the digests are recorded.
        """
        if found.size <= LARGEST_SINGLE_UPLOAD:
            return check(self._bucket, key, found, turn.pulse)
        # Not at the top: functions that read no files would load ctypes.
        from tidegate.common import sha256

        if not sha256.AVAILABLE:
            logger.warning("libcrypto cannot save a SHA-256: the object must be read within one invocation")
            return check(self._bucket, key, found, turn.pulse)
        digests = self._continued(found, turn, pieces=pieces)
        began = saved = digests.offset
        saved_at = self._monotonic()
        until = turn.until - RESERVE_SECONDS - seconds_to_read(piece_size(found.size) if pieces else 0)
        try:
            with closing(in_order(self._bucket, key, found, turn.pulse, began)) as ranges:
                for done, chunk in ranges:
                    digests.update(chunk)
                    turn.pulse(done)
                    now = self._monotonic()
                    over = now > until
                    # Check the time only after a range, so that every turn makes progress, however short it is.
                    if done < found.size and (over or now - saved_at > SAVE_SECONDS) and (data := digests.save()):
                        self._present.add(turn.saved)
                        self._bucket.put(turn.saved, data)
                        saved, saved_at = done, now
                        if over:
                            return None
        except Conflict:
            # Otherwise a retry by the caller would fail for the same reason.
            self.forget(turn.saved)
            raise
        except DomainError as error:
            # An attempt that saved further digests does not count against the retries.
            error.progressed = saved > began
            raise
        return digests.finish()

    def forget(self, saved: str) -> None:
        """Deletes the saved digests, if there are any."""
        if saved in self._present:
            self._bucket.delete(saved)
            self._present.discard(saved)

    def _continued(self, found: StoredObject, turn: ReadingTurn, *, pieces: bool) -> RunningDigests:

        saved = self._bucket.content(turn.saved)
        if saved is None:
            return RunningDigests(found, pieces=pieces)
        self._present.add(turn.saved)
        try:
            digests = RunningDigests.restore(saved, pieces=pieces)
        except (ValueError, KeyError, TypeError):
            logger.exception("the saved digests are malformed: the object is read from its first byte", key=turn.saved)
            return RunningDigests(found, pieces=pieces)
        if digests.found != found:
            self.forget(turn.saved)
            raise Conflict(
                "the uploaded object was replaced while it was read: "
                f"its ETag was {digests.found.etag}, now it is {found.etag}"
            )
        return digests
