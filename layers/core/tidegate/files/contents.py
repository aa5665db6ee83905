"""Contents as distribution sees them: here, on its way, or neither."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import update
from tidegate.files.pieces import PieceList


class Content(NamedTuple):
    """`pieces_sha256` is of the list of its pieces' digests; None for small content and what was checked before."""

    state: str
    size: int
    checked_etag: str | None
    piece_size: int | None = None
    pieces_sha256: str | None = None


class ContentStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, project_id: str, signature: str) -> Content | None:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        if item is None:
            return None
        return Content(
            item["state"],
            item.get("size", 0),
            item.get("checked_etag"),
            item.get("piece_size"),
            item.get("pieces_sha256"),
        )

    def checked(self, project_id: str, signature: str, etag: str, pieces: PieceList | None) -> None:
        """The object of that ETag was read and has this signature. The list of its pieces is stored already."""
        sets: dict[str, object] = {"checked_etag": etag}
        if pieces is not None:
            sets |= {"piece_size": pieces.piece_size, "pieces_sha256": pieces.sha256}
        self._table.try_write(update(keys.content(project_id, signature), sets))
