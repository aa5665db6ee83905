"""The digests of an object that is read in turns: of the whole, its pieces and blocks, saved between turns."""

from __future__ import annotations

import json

from tidegate.aws.s3 import StoredObject
from tidegate.common.sha256 import Sha256
from tidegate.files.blocks import BLOCKS_A_PIECE, ENTRY_BYTES
from tidegate.files.pieces import DIGEST_BYTES, SMALLEST_FILE, PieceDigests
from tidegate.files.verify import Checked


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
        """One line of JSON, then the lists of pieces and blocks (2.5 MB at most). None within a piece."""
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
        """What was saved; `found` is the object as it was then. ValueError, KeyError or TypeError if malformed."""
        line, _, lists = data.partition(b"\n")
        head = json.loads(line)
        restored = cls(StoredObject(int(head["size"]), str(head["etag"])), pieces=pieces)
        restored.offset = int(head["offset"])
        restored._hashed = Sha256.restore(bytes.fromhex(head["sha256"]), restored.offset)
        if restored._pieces:
            count, rest = divmod(restored.offset, restored._pieces.piece_size)
            end = count * DIGEST_BYTES
            if rest or len(lists) != end + count * BLOCKS_A_PIECE * ENTRY_BYTES:
                raise ValueError(f"the lists of {restored.offset} bytes have {len(lists)} bytes")
            restored._pieces = PieceDigests(restored.found.size, lists[:end], lists[end:])
        return restored
