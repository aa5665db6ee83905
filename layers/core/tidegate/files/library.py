"""The library: find files, make download links, delete files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidegate.aws.s3_uploads import UploadBucket
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import WrongState
from tidegate.files.discard import delete_uploaded, discard_upload
from tidegate.files.model import (
    COMING,
    FAILED,
    LARGEST_SINGLE_UPLOAD,
    READY,
    VERIFYING,
    File,
    content_disposition,
    name_of,
)
from tidegate.files.pieces import blocks_object, pieces_object
from tidegate.files.store import FileStore
from tidegate.projects.audit import SYSTEM, act

LINK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Announcement:
    """A file as a caller announces it, before its content arrives."""

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
    """A URL that is valid until `expires_at`. A request to it must have these `headers`."""

    url: str
    expires_at: str
    headers: Mapping[str, str] = field(default_factory=dict)


def new_file(
    project_id: str, announced: Announcement, state: str, now: datetime, *, file_id: str | None = None
) -> File:
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
        """Files of the project, newest first. None matches every value."""
        if biz_id is not None and app_id is not None and file_path is not None:
            return self._store.find(project_id, (biz_id, app_id, file_path), limit, cursor)
        wanted = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._store.list(project_id, limit, cursor, **given)

    def link(self, project_id: str, file_id: str) -> PresignedUrl:
        """A presigned GET of the content. WrongState if the file is not ready."""
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
        """Deletes the file, and its content if no other file has it. InUse while a Job may need the content."""
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
