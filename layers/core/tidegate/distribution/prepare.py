"""Checks before a dispatch that the file is stored and matches its signature."""

from __future__ import annotations

import time

from tidegate.aws.s3_uploads import UploadBucket
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.targets import DONE, IN_PROGRESS
from tidegate.errors import FileNotFound, SignatureMismatch, TransferRefused
from tidegate.files.contents import Content, ContentStore
from tidegate.files.model import COMING, READY
from tidegate.files.pieces import SMALLEST_FILE
from tidegate.files.reading import Turn, TurnReader, saved_for_content

READY_TO_SEND, WAITING, OVER = "ready", "waiting", "over"


class PrepareFile:
    def __init__(
        self,
        contents: ContentStore,
        objects: UploadBucket,
        reader: TurnReader,
        engine: Engine,
        heartbeat: Heartbeat,
    ) -> None:
        self._contents = contents
        self._objects = objects
        self._reader = reader
        self._engine = engine
        self._heartbeat = heartbeat

    def prepare(self, project_id: str, job_key: str, seconds_left: float) -> str:
        until = time.monotonic() + seconds_left
        job = self._heartbeat.still_open(project_id, job_key)
        if job is None:
            return OVER
        content = self._contents.get(project_id, job.spec.file_signature)
        if content is None or content.state not in (READY, COMING):
            raise FileNotFound(
                f"the library has no file with the SHA-256 {job.spec.file_signature}, and no ingest is fetching it: "
                "upload it and submit again"
            )
        if content.state == COMING:
            return WAITING
        size = self._check(job, content, until)
        if size is None:
            return WAITING
        staged = self._engine.stage(job, size)
        if staged.code == IN_PROGRESS:
            return WAITING
        if staged.code != DONE:
            raise TransferRefused(f"the source host could not fetch the file: {staged.message or staged.code}")
        return READY_TO_SEND

    def _check(self, job: Job, content: Content, until: float) -> int | None:
        """Returns the size. Reads the object only if it was not verified since it was stored.

        None if the time is over. The next call continues, also for a later Job with the same content.
        """
        signature = job.spec.file_signature
        key = content.object
        found = self._objects.head(key)
        if found is None:
            raise FileNotFound(
                f"the content with the SHA-256 {signature} is gone from the bucket: upload the file again"
            )
        lacks_pieces = found.size >= SMALLEST_FILE and content.pieces_sha256 is None
        if found.etag != content.checked_etag or lacks_pieces:
            # In parallel ranges: one stream of tens of gigabytes may outlast the Job, and starts over if it breaks.
            turn = Turn(saved_for_content(job.project_id, signature), until)
            read = self._reader.check(key, found, turn)
            if read is None:
                return None
            if read.signature != signature:
                self._reader.forget(turn.saved)
                raise SignatureMismatch(
                    f"the stored content's SHA-256 is {read.signature}, not {signature}: upload the file again"
                )
            if read.pieces is not None:
                # Stored before the content's record names them, so that a named list can be read.
                for name, listed in read.pieces.objects(job.project_id, signature).items():
                    self._objects.put(name, listed)
            self._contents.checked(job.project_id, signature, read.etag, read.pieces)
            self._reader.forget(turn.saved)
        return found.size
