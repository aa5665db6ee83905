"""Contents as distribution sees them: here, on its way, or neither."""

from __future__ import annotations

from tidegate.adapters.dynamo import keys
from tidegate.adapters.dynamo.table import ConditionFailed, Table
from tidegate.adapters.dynamo.writes import update
from tidegate.domain.pieces import PieceList
from tidegate.services.download_ports import Content


class ContentRepository:
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
        try:
            self._table.write(update(keys.content(project_id, signature), sets))
        except ConditionFailed:
            return
