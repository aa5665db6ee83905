"""The library: finds, links and deletes files. Content is stored once for all files of a project that have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.s3 import UploadBucket
from tidegate.aws.table import ConditionFailed, Store, update
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import WrongState
from tidegate.files.model import (
    COMING,
    FAILED,
    LARGEST_SINGLE_UPLOAD,
    READY,
    VERIFYING,
    File,
    content_disposition,
    content_object,
    may_be_put_again,
    name_of,
    upload_object,
)
from tidegate.files.reading import PieceList, blocks_object, pieces_object
from tidegate.files.store import FileStore, OpenUpload, OpenUploads
from tidegate.projects.audit import SYSTEM, act


class Content(NamedTuple):
    """A stored content. `pieces_sha256` and `blocks_sha256` are digests of its two lists; None for small content."""

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
    """Returns the state of a content record. A `coming` content that no ingest fetches any more is `failed`.

    `bringing` has the files whose ingests fetch the content. DynamoDB removes the attribute with its last member. Older
    versions stored only one of these files, as `brought_by`.
    """
    is_lost = item["state"] == COMING and not item.get("bringing") and "brought_by" not in item
    return FAILED if is_lost else str(item["state"])


def _content(project_id: str, signature: str, item: dict[str, Any]) -> Content:
    key = item.get("object") or content_object(project_id, signature)
    pieces = (item.get("piece_size"), item.get("pieces_sha256"), item.get("blocks_sha256"))
    return Content(content_state(item), item.get("size", 0), item.get("checked_etag"), key, *pieces)


class ContentStore(Store):
    """Reads and protects the records of stored content, for distribution: state, size and object."""

    def get(self, project_id: str, signature: str) -> Content | None:
        item = self._table.get(keys.content(project_id, signature), consistent=True)
        return _content(project_id, signature, item) if item else None

    def use(self, project_id: str, signature: str, until: float) -> Content | None:
        """Protects a content against deletion until `until`, and returns it. None if there is no such content.

        If a later time was set before, that one stays.
        """
        later = "attribute_exists(#pk) AND (attribute_not_exists(#used_until) OR #used_until < :until)"
        key, until = keys.content(project_id, signature), int(until)
        try:
            item = self._table.write(update(key, {"used_until": until}, condition=later, until=until))
        except ConditionFailed as met:
            return _content(project_id, signature, met.item) if met.item else None
        return _content(project_id, signature, item)

    def objects_of(self, project_id: str, signatures: Iterable[str]) -> dict[str, str]:
        """Returns the key of each content's object, by signature."""
        wanted = sorted(set(signatures))
        # Consistent: without its record, a content would be looked for under the key of an older version.
        items = self._table.batch_get([keys.content(project_id, each) for each in wanted], consistent=True)
        known = {item["signature"]: item["object"] for item in items if "object" in item}
        return {signature: known.get(signature, content_object(project_id, signature)) for signature in wanted}

    def checked(self, project_id: str, signature: str, etag: str, pieces: PieceList | None) -> None:
        """Stores that the object with this ETag was read and has this signature. Store the content's lists first."""
        sets: dict[str, object] = {"checked_etag": etag}
        if pieces is not None:
            sets |= {"piece_size": pieces.piece_size, "pieces_sha256": pieces.sha256}
            sets |= {"blocks_sha256": pieces.blocks_sha256}
        self._table.try_write(update(keys.content(project_id, signature), sets))


# --- discard
# Deletes uploaded objects so that they cannot come back through a presigned URL.


def discard_upload(objects: UploadBucket, uploads: OpenUploads, upload: File | OpenUpload, now: datetime) -> None:
    """Deletes an uploaded object that no file's content uses, and then stops counting the upload. Idempotent.

    Call this only if the file can no longer become ready with this object.
    """
    key = upload_object(upload.project_id, upload.file_id)
    if upload.upload_id:
        # The URLs of its parts become invalid when the upload is aborted.
        objects.abort_upload(key, upload.upload_id)
        objects.delete(key)
    else:
        delete_uploaded(objects, uploads, upload.project_id, key, now)
    uploads.close(upload.project_id, upload.file_id)


def delete_uploaded(objects: UploadBucket, uploads: OpenUploads, project_id: str, key: str, now: datetime) -> None:
    """Deletes an uploaded object, so that its presigned URL cannot bring it back.

    If the project has a quota of bytes, an empty object takes its place while the URL is valid. The URL's PUT has
    `If-None-Match: *`, so S3 then refuses it. The daily sweep deletes the empty object.
    """
    if may_be_put_again(key, now) and uploads.are_limited(project_id):
        objects.put(key, b"")
    else:
        objects.delete(key)


LINK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a caller says of a file before its content arrives."""

    biz_id: int
    app_id: int
    file_path: str
    file_name: str | None = None
    signature: str | None = None
    size: int | None = None
    multipart: bool = False
    callback: str | None = None

    @property
    def in_parts(self) -> bool:
        return self.multipart or (self.size or 0) > LARGEST_SINGLE_UPLOAD


@dataclass(frozen=True, slots=True)
class PresignedUrl:
    """A presigned URL, valid until `expires_at`. A request to it must have these `headers`."""

    url: str
    expires_at: str
    headers: Mapping[str, str] = field(default_factory=dict)


def new_file(
    project_id: str, announced: Announcement, state: str, now: datetime, *, file_id: str | None = None
) -> File:
    """Returns the record of a new file in this state. Stores nothing."""
    return File(
        file_id=file_id or new_id("file", now),
        project_id=project_id,
        biz_id=announced.biz_id,
        app_id=announced.app_id,
        file_path=announced.file_path,
        file_name=announced.file_name or name_of(announced.file_path),
        state=state,
        created_at=iso(now),
        signature=announced.signature,
        size=announced.size,
        callback=announced.callback,
    )


class Library:
    """The library: find files, make download links, delete files."""

    def __init__(self, store: FileStore, objects: UploadBucket, clock: Clock) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock

    def get(self, project_id: str, file_id: str) -> File:
        return self._store.require(project_id, file_id)

    def list(
        self,
        project_id: str,
        *,
        biz_id: int | None,
        app_id: int | None,
        file_path: str | None,
        limit: int,
        cursor: str | None,
    ) -> Listed[File]:
        """Returns files of the project, newest first. A filter that is None matches every value."""
        if biz_id is not None and app_id is not None and file_path is not None:
            return self._store.find(project_id, (biz_id, app_id, file_path), limit, cursor)
        wanted = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._store.list(project_id, limit, cursor, **given)

    def link(self, project_id: str, file_id: str) -> PresignedUrl:
        """Returns a presigned URL of the content. WrongState if the file is not ready."""
        file = self.get(project_id, file_id)
        if file.state != READY or file.signature is None:
            raise WrongState(
                f"the file {file_id} has failed ({file.error or 'no reason was recorded'}): announce it again"
                if file.state == FAILED
                else f"the file {file_id} is {file.state} and has no content yet: ask again when it is ready"
            )
        key = self._store.object_of(project_id, file.signature)
        url = self._objects.presign_get(key, LINK_SECONDS, disposition=content_disposition(file.file_name))
        return PresignedUrl(url, iso(self._clock() + timedelta(seconds=LINK_SECONDS)))

    def delete(self, project_id: str, file_id: str, *, who: str = SYSTEM) -> None:
        """Deletes the file. Its content is deleted too if no other file has it. InUse while a Job may need it."""
        file = self.get(project_id, file_id)
        if file.state in (COMING, VERIFYING):
            raise WrongState(f"the file {file_id} is {file.state}: cancel its request {file.request_id} first")
        now = self._clock()
        line = act(project_id, file_id, now, who, "file.delete", file.file_path, states=(file.state, "deleted"))
        gone = self._store.remove(file, line, now.timestamp())
        if file.state != READY:
            discard_upload(self._objects, self._store.open_uploads, file, now)
        elif gone and file.signature:
            delete_uploaded(self._objects, self._store.open_uploads, project_id, gone, now)
            lists = pieces_object(project_id, file.signature), blocks_object(project_id, file.signature)
            self._objects.delete(*lists)
