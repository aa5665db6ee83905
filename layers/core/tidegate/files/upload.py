"""Uploads: they are announced, sent to presigned URLs, completed, and verified before their files are ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from tidegate.aws.s3 import StoredObject, UploadBucket
from tidegate.aws.table import Write
from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import Conflict, Invalid, QuotaExceeded, RecordNotFound, SignatureMismatch, WrongState
from tidegate.files.library import Announcement, PresignedUrl, discard_upload, new_file
from tidegate.files.model import (
    COMING,
    FAILED,
    LARGEST_SINGLE_UPLOAD,
    MOST_PARTS,
    PARTS_SECONDS,
    PENDING,
    READY,
    VERIFYING,
    File,
    length_of_part,
    part_count,
    part_size_for,
    upload_headers,
    upload_object,
)
from tidegate.files.reading import Checked, check, fault_of
from tidegate.files.store import FileStore, OpenUpload, Stored
from tidegate.projects.audit import SYSTEM, AuditLine, act
from tidegate.projects.limits import MOST_PUT_BYTES

UPLOAD_SECONDS = 3600
PART_LINK_SECONDS = 3600
# How long the URL of a part of unknown length is valid, in projects with a quota of bytes: it can bring 5 GiB.
UNSIZED_PART_SECONDS = 900
# A PUT that began while its URL was valid may end this much later.
_SLOWEST_PART = 900

# Queues the verification of a file, in one transaction with these writes.
Enqueue = Callable[[File, Sequence[Write], str], None]
# Reads the object with this key; None if it must be continued in another invocation.
Read = Callable[[str, StoredObject], Checked | None]


class PartLink(NamedTuple):
    number: int
    url: str


def _sendable_until(file: File) -> datetime:
    seconds = PARTS_SECONDS if file.upload_id else UPLOAD_SECONDS
    return datetime.fromisoformat(file.created_at) + timedelta(seconds=seconds)


class Uploads:
    def __init__(self, store: FileStore, objects: UploadBucket, clock: Clock, enqueue: Enqueue) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._enqueue = enqueue

    def announce(self, project_id: str, announced: Announcement, *, who: str = SYSTEM) -> tuple[File, PresignedUrl]:
        """Creates a file that will be uploaded and returns it with its presigned URL.

        QuotaExceeded if the announced size does not fit. For an upload in parts the URL is empty, because `parts` gives
        one for each part.
        """
        try:
            return self._announce(project_id, announced, who)
        except QuotaExceeded:
            if not self._give_up_abandoned(project_id):
                raise
            return self._announce(project_id, announced, who)

    def _announce(self, project_id: str, announced: Announcement, who: str) -> tuple[File, PresignedUrl]:
        self._store.require_room(project_id, announced.size or 0)
        now = self._clock()
        file = new_file(project_id, announced, PENDING, now)
        if announced.in_parts:
            upload_id = self._objects.begin_upload(upload_object(project_id, file.file_id))
            file = replace(file, upload_id=upload_id, part_size=part_size_for(announced.size))
        link = self._link(file, now)
        line = act(project_id, file.file_id, now, who, "file.create", file.file_path)
        self._store.add(file, line)
        return file, link

    def announced(self, project_id: str, file_id: str) -> tuple[File, PresignedUrl]:
        """What `announce` returned for this file. WrongState if its content can no longer be sent."""
        file, now = self._store.require(project_id, file_id), self._clock()
        if file.state != PENDING or now >= _sendable_until(file):
            raise WrongState(f"the file {file_id} is {file.state}, or its time to be sent is over: announce a new one")
        return file, self._link(file, now)

    def _link(self, file: File, now: datetime) -> PresignedUrl:
        """The URL for the content. It is empty for an upload in parts."""
        until = _sendable_until(file)
        if file.upload_id:
            return PresignedUrl("", iso(until))
        headers, seconds = upload_headers(file.size, file.signature), math.ceil((until - now).total_seconds())
        url = self._objects.presign_put(upload_object(file.project_id, file.file_id), seconds, headers)
        return PresignedUrl(url, iso(until), headers)

    def _give_up_abandoned(self, project_id: str) -> bool:
        """Removes uploads that did not end in time, to make room. Returns whether it removed any."""
        gone = [self._give_up(upload) for upload in self._store.open_uploads.abandoned(project_id, now=self._clock())]
        return any(gone)

    def _give_up(self, upload: OpenUpload) -> bool:
        now = self._clock()
        file = self._store.get(upload.project_id, upload.file_id)
        if file and file.state == VERIFYING:
            return False
        if file and file.state == READY:
            self.drop_duplicate(file)
            return True
        if file:
            # Delete the record first: after that, no call completes the upload or verifies it again.
            states = (file.state, "deleted")
            line = act(file.project_id, file.file_id, now, SYSTEM, "file.delete", file.file_path, states=states)
            try:
                self._store.remove(file, line, now.timestamp())
            except (Conflict, WrongState, RecordNotFound):
                return False
        discard_upload(self._objects, self._store.open_uploads, upload, now)
        return True

    def parts(
        self, project_id: str, file_id: str, numbers: Sequence[int], sizes: Sequence[int] | None = None
    ) -> list[PartLink]:
        """Returns a presigned URL for each of these parts. `sizes`: their lengths, if no file size was announced."""
        file = self._store.require(project_id, file_id)
        if not file.upload_id:
            raise WrongState(f"the file {file_id} is not uploaded in parts: PUT its content to upload_url")
        if file.state != PENDING:
            raise WrongState(
                f"the file {file_id} is {file.state}: only a pending file takes parts; announce a new file"
            )
        last = part_count(file.size, file.part_size) if file.size is not None and file.part_size else MOST_PARTS
        if wrong := [number for number in numbers if not 1 <= number <= last]:
            raise Invalid(f"the file has no part {wrong[0]}: its parts have the numbers 1 to {last}")
        key = upload_object(project_id, file_id)
        lengths: dict[int, int | None] = dict.fromkeys(numbers)
        lengths |= dict(zip(numbers, sizes or (), strict=False))
        seconds = PART_LINK_SECONDS if sizes or file.size is not None else UNSIZED_PART_SECONDS
        if file.size is not None and file.part_size:
            lengths = {number: length_of_part(number, file.size, file.part_size) for number in numbers}
        elif self._store.open_uploads.are_limited(project_id):
            self._reserve(file, key, lengths, seconds)
        upload_id = file.upload_id
        return [
            PartLink(number, self._objects.presign_part(key, upload_id, number, seconds, length))
            for number, length in lengths.items()
        ]

    def _reserve(self, file: File, key: str, lengths: Mapping[int, int | None], seconds: int) -> None:
        """Counts these parts towards the quota. A part without a length counts with S3's largest size.

        For parts whose URLs have expired, this also corrects the count to their size in S3. For the other parts, that
        is done when the file is complete.
        """
        now = self._clock().timestamp()
        most = {number: MOST_PUT_BYTES if length is None else length for number, length in lengths.items()}

        def grown(opened: OpenUpload) -> OpenUpload:
            ended = [int(number) for number, (until, _) in opened.asked.items() if until < now]
            have = self._objects.part_sizes(key, str(file.upload_id), min(ended)) if ended else {}
            return opened.with_parts(now, have, most, int(now) + seconds + _SLOWEST_PART)

        self._store.open_uploads.grow(grown, file.project_id, file.file_id)

    def complete(
        self, project_id: str, file_id: str, parts: Sequence[tuple[int, str]] = (), *, who: str = SYSTEM
    ) -> File:
        """Ends an upload and returns its file. Idempotent.

        A small file is verified now. A large one is `verifying` until a queued request has verified it.
        """
        file = self._store.require(project_id, file_id)
        if file.state in (READY, VERIFYING):
            return file
        if file.state == FAILED:
            raise SignatureMismatch(file.error or "the upload was refused")
        if file.state == COMING:
            raise WrongState(
                f"the request {file.request_id} fetches this file: there is no upload to complete; wait for the request"
            )
        found = self._stored(file, parts)
        if file.size is not None and file.size != found.size:
            return self._refuse(file, str(fault_of(file, found.size, "")), who)
        if found.size > LARGEST_SINGLE_UPLOAD:
            return self._verify_later(file, found, who)
        checked = check(self._objects, upload_object(project_id, file_id), found)
        if fault := fault_of(file, checked.size, checked.signature):
            return self._refuse(file, fault, who)
        return self._keep(file, checked, who)

    def verify(self, project_id: str, file_id: str, read: Read) -> tuple[File, Sequence[Write]] | None:
        """Reads a large upload in a queued request. Returns (file, writes that make it ready).

        None if `read` returns None, so that another invocation must continue. If size or SHA-256 are not as announced,
        deletes the object and raises SignatureMismatch.
        """
        file = self._store.require(project_id, file_id)
        key = upload_object(project_id, file_id)
        found = self._objects.head(key)
        if found is None:
            raise SignatureMismatch("the uploaded object is gone: announce the file again")
        checked = read(key, found)
        if checked is None:
            return None
        if fault := fault_of(file, checked.size, checked.signature):
            discard_upload(self._objects, self._store.open_uploads, file, self._clock())
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
            # Another call completed it at the same time and queued the verification.
            present = self._store.require(file.project_id, file.file_id)
            if present.state == PENDING:
                raise
            return present
        return later

    def drop_duplicate(self, file: File) -> None:
        """Deletes the uploaded object if its content was stored before. Call it after the file became ready."""
        key = upload_object(file.project_id, file.file_id)
        if file.signature and self._store.object_of(file.project_id, file.signature) != key:
            discard_upload(self._objects, self._store.open_uploads, file, self._clock())

    def _stored(self, file: File, parts: Sequence[tuple[int, str]]) -> StoredObject:
        key = upload_object(file.project_id, file.file_id)
        if file.upload_id:
            found = self._objects.head(key)
            if found is not None:
                return found
            if not parts:
                raise Invalid(
                    'this file is uploaded in parts: complete it with {"parts": [{"number": 1, "etag": …}, …]}'
                )
            return self._objects.complete(key, file.upload_id, sorted(parts))
        found = self._objects.head(key)
        if found is None:
            raise WrongState(
                "the file has not been uploaded yet: PUT the content to upload_url with all upload_headers first"
            )
        return found

    def _placed(self, file: File, checked: Checked) -> tuple[File, Stored | None]:
        """Returns (file, object): the file as it is when it is ready, and its object.

        The object is None if the content was stored before.
        """
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
        discard_upload(self._objects, self._store.open_uploads, file, self._clock())
        raise SignatureMismatch(fault)

    def _line(self, file: File, state: str, who: str, why: str = "") -> AuditLine:
        states = (file.state, state)
        return act(file.project_id, file.file_id, self._clock(), who, "file.complete", why, states=states)
