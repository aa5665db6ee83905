"""Files that are complete on this host: copied for another container, or served to peers as they are."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

from tidegate_client.swarm.store import CHUNK, PieceStore, StaleFile
from tidegate_client.swarm.terms import Terms, is_piece_list


def copy_file(store: PieceStore | None, signature: str, file: BinaryIO) -> bool:
    """Copies the file of another delivery. False if it is gone, was changed, or does not have this SHA-256."""
    hashed = hashlib.sha256()
    if store is None:
        return False
    file.seek(0)
    file.truncate()
    try:
        for piece in range(store.layout.count):
            length = store.layout.length(piece)
            for offset in range(0, length, CHUNK):
                chunk = store.read(piece, offset, min(CHUNK, length - offset))
                hashed.update(chunk)
                file.write(chunk)
    except StaleFile:
        return False
    file.flush()
    return hashed.hexdigest() == signature.lower()


def complete_store(file: BinaryIO, terms: Terms) -> PieceStore | None:
    """A store for a complete file; None if its pieces are not those of the swarm."""
    digests, layout = [], terms.layout
    for piece in range(layout.count):
        hashed, start, left = hashlib.sha256(), layout.start(piece), layout.length(piece)
        while left and (chunk := os.pread(file.fileno(), min(CHUNK, left), start)):
            hashed.update(chunk)
            start, left = start + len(chunk), left - len(chunk)
        digests.append(hashed.digest())
    piece_list = b"".join(digests)
    if not is_piece_list(piece_list, terms):
        return None
    store = PieceStore(file.fileno(), layout, piece_list)
    store.have = layout.everything
    return store
