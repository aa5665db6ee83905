"""The library: announce, upload, check, find and hand out files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import RecordNotFound, SignatureMismatch, WrongState
from tidegate.files.model import (
    COMING,
    FAILED,
    PENDING,
    READY,
    File,
    content_disposition,
    content_object,
    name_of,
    upload_headers,
    upload_object,
)
from tidegate.files.store import FileStore
from tidegate.projects.audit import SYSTEM, AuditLine, act

UPLOAD_SECONDS = 3600
LINK_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a caller says of a file that is to come."""

    biz_id: int
    app_id: int
    file_path: str
    file_name: str | None = None
    signature: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class PresignedUrl:
    """`headers` are what a request to the URL must carry."""

    url: str
    expires_at: str
    headers: Mapping[str, str] = field(default_factory=dict)


def new_file(project_id: str, announced: Announcement, state: str, now: datetime) -> File:
    return File(
        file_id=new_id("file", now),
        project_id=project_id,
        biz_id=announced.biz_id,
        app_id=announced.app_id,
        file_path=announced.file_path,
        file_name=announced.file_name or name_of(announced.file_path),
        state=state,
        created_at=iso(now),
        signature=announced.signature,
        size=announced.size,
    )


class Library:
    def __init__(self, store: FileStore, objects: Bucket, clock: Clock) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock

    def announce(self, project_id: str, announced: Announcement, *, who: str = SYSTEM) -> tuple[File, PresignedUrl]:
        """QuotaExceeded if the announced size does not fit; what was not announced is counted by `complete`."""
        self._store.require_room(project_id, announced.size or 0)
        now = self._clock()
        file = new_file(project_id, announced, PENDING, now)
        self._store.add(file, act(project_id, file.file_id, now, who, "file.create", file.file_path))
        headers = upload_headers(file.size, file.signature)
        url = self._objects.presign_put(upload_object(project_id, file.file_id), UPLOAD_SECONDS, headers)
        return file, self._link(url, UPLOAD_SECONDS, headers)

    def complete(self, project_id: str, file_id: str, *, who: str = SYSTEM) -> File:
        """Streams the upload through SHA-256 and moves it to its content's place. Running it twice is harmless."""
        file = self.get(project_id, file_id)
        if file.state == READY:
            return file
        if file.state == FAILED:
            raise SignatureMismatch(file.error or "the upload was refused")
        if file.state == COMING:
            raise WrongState("this file comes by an ingest request, not by an upload")
        uploaded = upload_object(project_id, file_id)
        try:
            found, chunks = self._objects.read(uploaded)
        except RecordNotFound as error:
            raise WrongState("nothing was uploaded yet") from error
        hashed = hashlib.sha256()
        for chunk in chunks:
            hashed.update(chunk)
        fault = _fault(file, found.size, hashed.hexdigest())
        if fault:
            self._store.finish(
                replace(file, state=FAILED, error=fault), was=(PENDING,), line=self._completed(file, FAILED, who, fault)
            )
            self._objects.delete(uploaded)
            raise SignatureMismatch(fault)
        whole = replace(file, state=READY, signature=hashed.hexdigest(), size=found.size)
        self._objects.copy(uploaded, content_object(project_id, hashed.hexdigest()), only_if=found)
        stored = self._store.finish(whole, was=(PENDING,), line=self._completed(file, READY, who))
        self._objects.delete(uploaded)
        return stored

    def _completed(self, file: File, state: str, who: str, why: str = "") -> AuditLine:
        states = (file.state, state)
        return act(file.project_id, file.file_id, self._clock(), who, "file.complete", why, states=states)

    def get(self, project_id: str, file_id: str) -> File:
        file = self._store.get(project_id, file_id)
        if file is None:
            raise RecordNotFound("no such file")
        return file

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
        if biz_id is not None and app_id is not None and file_path is not None:
            return self._store.find(project_id, (biz_id, app_id, file_path), limit, cursor)
        wanted = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._store.list(project_id, limit, cursor, **given)

    def link(self, project_id: str, file_id: str) -> PresignedUrl:
        file = self.get(project_id, file_id)
        if file.state != READY or file.signature is None:
            raise WrongState("the file is not here yet" if file.state != FAILED else "the file never came")
        key = content_object(project_id, file.signature)
        url = self._objects.presign_get(key, LINK_SECONDS, disposition=content_disposition(file.file_name))
        return self._link(url, LINK_SECONDS)

    def _link(self, url: str, seconds: int, headers: Mapping[str, str] | None = None) -> PresignedUrl:
        return PresignedUrl(url, iso(self._clock() + timedelta(seconds=seconds)), headers or {})


def _fault(file: File, size: int, signature: str) -> str | None:
    if file.size is not None and file.size != size:
        return f"{size} bytes came, {file.size} were announced"
    if file.signature is not None and file.signature != signature:
        return f"the content's SHA-256 is {signature}, {file.signature} was announced"
    return None
