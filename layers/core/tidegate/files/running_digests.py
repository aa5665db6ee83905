"""The digests of an object that is read in turns: of the whole, its pieces and blocks, saved between turns."""

from __future__ import annotations

import json

from tidegate.aws.s3 import StoredObject
from tidegate.common.sha256 import Sha256
from tidegate.files.blocks import BLOCKS_A_PIECE, ENTRY_BYTES
from tidegate.files.pieces import DIGEST_BYTES, SMALLEST_FILE, PieceDigests, PiecesSoFar, piece_size
from tidegate.files.verify import Checked


class RunningDigests:
    """The digests of an object's first `offset` bytes."""

    def __init__(
        self,
        found: StoredObject,
        *,
        pieces: bool,
        offset: int = 0,
        hashed: Sha256 | None = None,
        done: PiecesSoFar | None = None,
    ) -> None:
        self.found = found
        self.offset = offset
        self._hashed = hashed or Sha256()
        wanted = pieces and found.size >= SMALLEST_FILE
        self._pieces = PieceDigests(found.size, Sha256, offset, done) if wanted else None

    def update(self, chunk: bytes) -> None:
        self._hashed.update(chunk)
        if self._pieces:
            self._pieces.update(chunk)
        self.offset += len(chunk)

    def finish(self) -> Checked:
        lists = self._pieces.finish() if self._pieces else None
        return Checked(self.found.size, self.found.etag, self._hashed.hexdigest(), lists)

    def save(self) -> bytes | None:
        """One line of JSON, then the lists of pieces and blocks (2.4 MB at most). None within a block."""
        head: dict[str, str | int] = {
            "size": self.found.size,
            "etag": self.found.etag,
            "offset": self.offset,
            "sha256": self._hashed.save().hex(),
        }
        if self._pieces is None:
            return json.dumps(head).encode() + b"\n"
        done = self._pieces.so_far()
        if done is None:
            return None
        head["open_piece"] = done.open_piece.save().hex()
        return json.dumps(head).encode() + b"\n" + done.digests + done.blocks

    @classmethod
    def restore(cls, data: bytes, *, pieces: bool) -> RunningDigests:
        """What was saved; `found` is the object as it was then. ValueError, KeyError or TypeError if malformed."""
        line, _, lists = data.partition(b"\n")
        head = json.loads(line)
        found, offset = StoredObject(int(head["size"]), str(head["etag"])), int(head["offset"])
        hashed = Sha256.restore(bytes.fromhex(head["sha256"]), offset)
        if not pieces or found.size < SMALLEST_FILE:
            return cls(found, pieces=False, offset=offset, hashed=hashed)
        piece = piece_size(found.size)
        digests, blocks = offset // piece * DIGEST_BYTES, offset * BLOCKS_A_PIECE // piece * ENTRY_BYTES
        if len(lists) != digests + blocks or offset % (piece // BLOCKS_A_PIECE):
            raise ValueError(f"the lists of {offset} bytes have {digests + blocks} bytes, not {len(lists)}")
        open_piece = Sha256.restore(bytes.fromhex(head["open_piece"]), offset % piece)
        done = PiecesSoFar(lists[:digests], lists[digests:], open_piece)
        return cls(found, pieces=True, offset=offset, hashed=hashed, done=done)
