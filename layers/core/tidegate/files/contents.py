"""Records of stored content, as distribution reads them: its state, size and object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import update
from tidegate.files.model import COMING, FAILED, content_object
from tidegate.files.pieces import PieceList


class Content(NamedTuple):
    """`pieces_sha256` and `blocks_sha256` are the digests of its lists; None if it has none, as small content."""

    state: str
    size: int
    # The ETag of the object when its SHA-256 was last verified.
    checked_etag: str | None
    # The key of its object in the bucket.
    object: str
    piece_size: int | None = None
    pieces_sha256: str | None = None
    blocks_sha256: str | None = None


def content_state(item: Mapping[str, Any]) -> str:
    """The state of a content record. One that is coming has failed when no ingest brings it any more.

    `bringing` are the files whose ingests bring it; DynamoDB removes the attribute with its last member. Older
    versions stored only one of them, as `brought_by`.
    """
    is_lost = item["state"] == COMING and not item.get("bringing") and "brought_by" not in item
    return FAILED if is_lost else str(item["state"])


def _content(project_id: str, signature: str, item: dict[str, Any]) -> Content:
    key = item.get("object") or content_object(project_id, signature)
    pieces = (item.get("piece_size"), item.get("pieces_sha256"), item.get("blocks_sha256"))
    return Content(content_state(item), item.get("size", 0), item.get("checked_etag"), key, *pieces)


class ContentStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, project_id: str, signature: str) -> Content | None:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        return _content(project_id, signature, item) if item else None

    def use(self, project_id: str, signature: str, until: float) -> Content | None:
        """The content, protected against deletion until `until`, or until a later time that was set before.

        None if there is no such content.
        """
        later = "attribute_exists(#pk) AND (attribute_not_exists(#used_until) OR #used_until < :until)"
        key, until = keys.content(project_id, signature), int(until)
        try:
            item = self._table.write(update(key, {"used_until": until}, condition=later, until=until))
        except ConditionFailed as met:
            return _content(project_id, signature, met.item) if met.item else None
        return _content(project_id, signature, item)

    def objects_of(self, project_id: str, signatures: Iterable[str]) -> dict[str, str]:
        """The key of each content's object, by signature."""
        wanted = sorted(set(signatures))
        items = self._table.batch_get([keys.content(project_id, signature) for signature in wanted])
        known = {item["signature"]: item["object"] for item in items if "object" in item}
        return {signature: known.get(signature, content_object(project_id, signature)) for signature in wanted}

    def checked(self, project_id: str, signature: str, etag: str, pieces: PieceList | None) -> None:
        """Records that the object with this ETag was read and has this signature. Store its lists before."""
        sets: dict[str, object] = {"checked_etag": etag}
        if pieces is not None:
            sets |= {"piece_size": pieces.piece_size, "pieces_sha256": pieces.sha256}
            sets |= {"blocks_sha256": pieces.blocks_sha256}
        self._table.try_write(update(keys.content(project_id, signature), sets))
