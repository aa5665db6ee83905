"""`extract`: makes library files of the files in an archive of the library."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.aws.table import ConditionFailed
from tidegate.common.ids import Clock, digest
from tidegate.errors import BadArchive, FileNotFound, NoSpace, QuotaExceeded, WrongState
from tidegate.files.library import Announcement, new_file
from tidegate.files.model import FAILED, PENDING, READY, File, path_fault, upload_object
from tidegate.files.store import FileStore
from tidegate.files.upload import Uploads
from tidegate.ingest.archives import ArchiveEntry, RangeReader, entries_of
from tidegate.ingest.feeds.choice import path_matches
from tidegate.ingest.model import PART_BYTES
from tidegate.ingest.ports import Heartbeat, Outcome, Step
from tidegate.projects.audit import SYSTEM, act
from tidegate.queue.model import Request

# Bytes per read of the archive: few reads of S3, and little memory.
_BUFFER = 4 * 1024 * 1024
# No entry is begun when fewer seconds of the invocation are left.
_RESERVE_SECONDS = 120.0


class Extract:
    """Extracts entries one by one. File ids are deterministic, so a repeated run skips what is done."""

    def __init__(
        self,
        parts: MultipartStore,
        files: FileStore,
        uploads: Uploads,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._files = files
        self._uploads = uploads
        self._clock = clock
        self._monotonic = monotonic

    def __call__(self, step: Step) -> Outcome:
        request, until = step.request, self._monotonic() + step.seconds_left - _RESERVE_SECONDS
        archive = self._archive(request)
        done = dict(step.state or {"files": 0, "bytes": 0})
        skipped = 0
        for number, entry in enumerate(self._chosen(request, archive)):
            if number < int(done["files"]):
                skipped += 1
                continue
            # At least one entry in every invocation, so that the request makes progress.
            if self._monotonic() > until and number > skipped:
                return Outcome(state=done)
            self._bring(request, archive, entry, step.heartbeat, done)
            done = {"files": number + 1, "bytes": int(done["bytes"]) + entry.size}
        return Outcome({"file_id": archive.file_id, **done})

    def _archive(self, request: Request) -> File:
        file = self._files.require(request.project_id, str(request.payload["file_id"]))
        if file.state != READY or file.signature is None:
            raise WrongState(f"the archive {file.file_id} is {file.state}: extract it when it is ready")
        return file

    def _chosen(self, request: Request, archive: File) -> Iterator[ArchiveEntry]:
        key = self._files.object_of(request.project_id, str(archive.signature))
        stored = self._parts.head(key)
        if stored is None:
            raise FileNotFound(f"the content of the archive {archive.file_id} is gone from the bucket: upload it again")
        include: Sequence[str] = request.payload.get("include") or ()
        exclude: Sequence[str] = request.payload.get("exclude") or ()
        raw = RangeReader(lambda start, last: self._parts.read_range(key, start, last), stored.size)
        reader = io.BufferedReader(raw, _BUFFER)  # type: ignore[type-var]
        for entry in entries_of(reader, stored.size):
            taken = not include or path_matches(entry.path, include)
            if taken and not path_matches(entry.path, exclude):
                yield entry

    def _bring(
        self, request: Request, archive: File, entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]
    ) -> None:
        try:
            file = self._announced(request, archive, entry)
        except QuotaExceeded as error:
            raise NoSpace(f"{entry.path!r} does not fit: {error.detail}") from error
        if file.state != PENDING:
            if file.state == FAILED:
                raise BadArchive(f"{entry.path!r} could not be stored: {file.error}")
            return
        written = self._write(upload_object(file.project_id, file.file_id), entry, heartbeat, done)
        if written != entry.size:
            raise BadArchive(f"{entry.path!r} has {written} bytes, but the archive states {entry.size}: pack it again")
        try:
            self._uploads.complete(file.project_id, file.file_id)
        except QuotaExceeded as error:
            raise NoSpace(f"{entry.path!r} does not fit: {error.detail}") from error

    def _announced(self, request: Request, archive: File, entry: ArchiveEntry) -> File:
        """The entry's file. Its id is derived from the request and the path, so a second run creates no second file."""
        made_at, tail = request.request_id[len("req-") :][:10], digest(request.request_id, entry.path, length=16)
        file_id = f"file-{made_at}{tail}"
        known = self._files.get(request.project_id, file_id)
        if known is not None:
            return known
        path = f"{str(request.payload['file_path']).rstrip('/')}/{entry.path}"
        if fault := path_fault(path):
            raise BadArchive(f"the path {path!r} {fault}")
        now = self._clock()
        announced = Announcement(archive.biz_id, archive.app_id, path, size=entry.size)
        file = new_file(request.project_id, announced, PENDING, now, file_id=file_id)
        line = act(request.project_id, file_id, now, SYSTEM, "file.extract", f"from {archive.file_id}")
        try:
            self._files.add(file, line)
        except ConditionFailed:
            # The step runs twice, and the other run created the file first.
            return self._files.get(request.project_id, file_id) or file
        return file

    def _write(self, key: str, entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]) -> int:
        pieces = self._pieces(entry, heartbeat, done)
        first = next(pieces, bytearray())
        written = len(first)
        if written < PART_BYTES:
            self._parts.put(key, first)
            return written
        upload_id = self._parts.begin_upload(key)
        try:
            self._parts.put_part(key, upload_id, 1, first)
            count = 1
            for count, piece in enumerate(pieces, 2):
                self._parts.put_part(key, upload_id, count, piece)
                written += len(piece)
            self._parts.complete(key, upload_id, count)
        except BaseException:
            self._parts.abort_upload(key, upload_id)
            raise
        return written

    def _pieces(self, entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]) -> Iterator[bytearray]:
        piece, read = bytearray(), 0
        for chunk in entry.chunks():
            read += len(chunk)
            heartbeat({"files": done["files"], "bytes": int(done["bytes"]) + read})
            piece += chunk
            if len(piece) >= PART_BYTES:
                yield piece[:PART_BYTES]
                piece = piece[PART_BYTES:]
        if piece:
            yield piece
