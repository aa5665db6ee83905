"""Uploads: announced, sent by presigned URLs, completed, and checked before anyone may have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_uploads import UploadBucket
from tidegate.aws.writes import Write
from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import Conflict, Invalid, RecordNotFound, SignatureMismatch, WrongState
from tidegate.files.library import Announcement, PresignedUrl, new_file
from tidegate.files.model import (
    COMING,
    FAILED,
    LARGEST_SINGLE_UPLOAD,
    MOST_PARTS,
    PENDING,
    READY,
    VERIFYING,
    File,
    part_count,
    part_size_for,
    upload_headers,
    upload_object,
)
from tidegate.files.store import FileStore, Stored
from tidegate.files.verify import Checked, Pulse, check, fault_of
from tidegate.projects.audit import SYSTEM, AuditLine, act

UPLOAD_SECONDS = 3600
# The bucket's lifecycle ends an upload in parts after a day.
PARTS_SECONDS = 24 * 3600
PART_LINK_SECONDS = 3600

# Queues the verification of a file in the same transaction as these writes.
Enqueue = Callable[[File, Sequence[Write], str], None]


class Part(NamedTuple):
    number: int
    url: str


class Uploads:
    def __init__(self, store: FileStore, objects: UploadBucket, clock: Clock, enqueue: Enqueue) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._enqueue = enqueue

    def announce(self, project_id: str, announced: Announcement, *, who: str = SYSTEM) -> tuple[File, PresignedUrl]:
        """QuotaExceeded if the announced size does not fit; what was not announced is counted by `complete`.

        The URL of an upload in parts is empty: `parts` gives one for each part.
        """
        self._store.require_room(project_id, announced.size or 0)
        now = self._clock()
        file = new_file(project_id, announced, PENDING, now)
        key = upload_object(project_id, file.file_id)
        if announced.in_parts:
            part_size = part_size_for(announced.size)
            file = replace(file, upload_id=self._objects.begin_upload(key), part_size=part_size)
            link = PresignedUrl("", iso(now + timedelta(seconds=PARTS_SECONDS)))
        else:
            headers = upload_headers(file.size, file.signature)
            url = self._objects.presign_put(key, UPLOAD_SECONDS, headers)
            link = PresignedUrl(url, iso(now + timedelta(seconds=UPLOAD_SECONDS)), headers)
        line = act(project_id, file.file_id, now, who, "file.create", file.file_path)
        self._store.add(file, line)
        return file, link

    def parts(self, project_id: str, file_id: str, numbers: Sequence[int]) -> list[Part]:
        file = self._get(project_id, file_id)
        if file.state != PENDING or not file.upload_id:
            raise WrongState(f"the file is {file.state}" if file.upload_id else "the file is not uploaded in parts")
        last = part_count(file.size, file.part_size) if file.size and file.part_size else MOST_PARTS
        if wrong := [number for number in numbers if not 1 <= number <= last]:
            raise Invalid(f"there is no part {wrong[0]}: the parts are 1 to {last}")
        key = upload_object(project_id, file_id)
        return [
            Part(number, self._objects.presign_part(key, file.upload_id, number, PART_LINK_SECONDS))
            for number in numbers
        ]

    def complete(
        self, project_id: str, file_id: str, parts: Sequence[tuple[int, str]] = (), *, who: str = SYSTEM
    ) -> File:
        """Checks an upload now if it is small; a large one is `verifying` when this returns. Twice is harmless."""
        file = self._get(project_id, file_id)
        if file.state in (READY, VERIFYING):
            return file
        if file.state == FAILED:
            raise SignatureMismatch(file.error or "the upload was refused")
        if file.state == COMING:
            raise WrongState("this file comes by an ingest request, not by an upload")
        found = self._stored(file, parts)
        if file.size is not None and file.size != found.size:
            return self._refuse(file, str(fault_of(file, found.size, "")), who)
        if found.size > LARGEST_SINGLE_UPLOAD:
            return self._verify_later(file, found, who)
        checked = check(self._objects, upload_object(project_id, file_id), found)
        if fault := fault_of(file, checked.size, checked.signature):
            return self._refuse(file, fault, who)
        return self._keep(file, checked, who)

    def verify(self, project_id: str, file_id: str, pulse: Pulse) -> tuple[File, Sequence[Write]]:
        """The queued step of a large file: reads it, and returns what makes it ready.

        SignatureMismatch if it is not what was announced; the object is removed then.
        """
        file = self._get(project_id, file_id)
        key = upload_object(project_id, file_id)
        found = self._objects.head(key)
        if found is None:
            raise SignatureMismatch("the uploaded object is gone; announce the file again")
        checked = check(self._objects, key, found, pulse)
        if fault := fault_of(file, checked.size, checked.signature):
            self._objects.delete(key)
            raise SignatureMismatch(fault)
        whole, stored = self._placed(file, checked)
        return whole, self._store.finish_writes(whole, was=(VERIFYING,), stored=stored)

    def _verify_later(self, file: File, found: StoredObject, who: str) -> File:
        now = self._clock()
        later = replace(file, state=VERIFYING, size=found.size, request_id=new_id("req", now))
        line = act(file.project_id, file.file_id, now, who, "file.complete", states=(file.state, VERIFYING))
        try:
            self._enqueue(later, self._store.verifying_writes(later, line), who)
        except Conflict:
            # Completed twice at once: the other call queued it.
            present = self._get(file.project_id, file.file_id)
            if present.state == PENDING:
                raise
            return present
        return later

    def drop_duplicate(self, file: File) -> None:
        """After the end was written: an upload whose content was here already is not kept a second time."""
        key = upload_object(file.project_id, file.file_id)
        if file.signature and self._store.object_of(file.project_id, file.signature) != key:
            self._objects.delete(key)

    def _stored(self, file: File, parts: Sequence[tuple[int, str]]) -> StoredObject:
        key = upload_object(file.project_id, file.file_id)
        if file.upload_id:
            found = self._objects.head(key)
            if found is not None:
                return found
            if not parts:
                raise Invalid("an upload in parts is completed with its parts: [{number, etag}, …]")
            return self._objects.complete(key, file.upload_id, sorted(parts))
        found = self._objects.head(key)
        if found is None:
            raise WrongState(
                "nothing was uploaded yet: PUT the content to upload_url first, with all of upload_headers"
            )
        return found

    def _placed(self, file: File, checked: Checked) -> tuple[File, Stored | None]:
        """The file as it will be, and its object, unless its content is here already."""
        whole = replace(file, state=READY, signature=checked.signature, size=checked.size, error=None)
        key = upload_object(file.project_id, file.file_id)
        here = self._store.object_of(file.project_id, checked.signature)
        if self._store.has_content(file.project_id, checked.signature) and here != key and self._objects.head(here):
            return whole, None
        if checked.pieces is None:
            return whole, Stored(key, checked.etag)
        for name, listed in checked.pieces.objects(file.project_id, checked.signature).items():
            self._objects.put(name, listed)
        return whole, Stored(
            key, checked.etag, checked.pieces.piece_size, checked.pieces.sha256, checked.pieces.blocks_sha256
        )

    def _keep(self, file: File, checked: Checked, who: str) -> File:
        kept = self._store.finish(
            lambda: self._placed(file, checked), was=(PENDING,), line=self._line(file, READY, who)
        )
        self.drop_duplicate(kept)
        return kept

    def _refuse(self, file: File, fault: str, who: str) -> File:
        failed = replace(file, state=FAILED, error=fault)
        self._store.finish(lambda: (failed, None), was=(PENDING,), line=self._line(file, FAILED, who, fault))
        self._objects.delete(upload_object(file.project_id, file.file_id))
        raise SignatureMismatch(fault)

    def _get(self, project_id: str, file_id: str) -> File:
        file = self._store.get(project_id, file_id)
        if file is None:
            raise RecordNotFound("no such file")
        return file

    def _line(self, file: File, state: str, who: str, why: str = "") -> AuditLine:
        states = (file.state, state)
        return act(file.project_id, file.file_id, self._clock(), who, "file.complete", why, states=states)
