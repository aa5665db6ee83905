"""Makes sure that the file is stored and has its signature, before it is dispatched."""

from __future__ import annotations

import hashlib

from tidegate.aws.s3 import Bucket, StoredObject
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.targets import DONE, IN_PROGRESS
from tidegate.errors import FileNotFound, SignatureMismatch, TransferRefused
from tidegate.files.contents import Content, ContentStore
from tidegate.files.model import COMING, READY
from tidegate.files.pieces import SMALLEST_FILE, PieceDigests, PieceList

READY_TO_SEND, WAITING, OVER = "ready", "waiting", "over"


class PrepareFile:
    def __init__(
        self,
        contents: ContentStore,
        objects: Bucket,
        engine: Engine,
        heartbeat: Heartbeat,
    ) -> None:
        self._contents = contents
        self._objects = objects
        self._engine = engine
        self._heartbeat = heartbeat

    def prepare(self, project_id: str, job_key: str) -> str:
        job = self._heartbeat.still_open(project_id, job_key)
        if job is None:
            return OVER
        content = self._contents.get(project_id, job.parcel.file_signature)
        if content is None or content.state not in (READY, COMING):
            raise FileNotFound("the file is not in the library and nothing is bringing it")
        if content.state == COMING:
            return WAITING
        size = self._check(job, content)
        staged = self._engine.stage(job, size)
        if staged.code == IN_PROGRESS:
            return WAITING
        if staged.code != DONE:
            raise TransferRefused(f"the source host could not fetch the file: {staged.message or staged.code}")
        return READY_TO_SEND

    def _check(self, job: Job, content: Content) -> int:
        """Reads the object once for each time it was stored, not once for each Job."""
        signature = job.parcel.file_signature
        key = content.object
        found = self._objects.head(key)
        if found is None:
            raise FileNotFound("the file's content is gone from the library")
        lacks_pieces = found.size >= SMALLEST_FILE and content.pieces_sha256 is None
        if found.etag != content.checked_etag or lacks_pieces:
            read, pieces = self._read(key, signature)
            if pieces is not None:
                # Before the record names them: a list that is named can be read.
                for name, listed in pieces.objects(job.project_id, signature).items():
                    self._objects.put(name, listed)
            self._contents.checked(job.project_id, signature, read.etag, pieces)
        return found.size

    def _read(self, key: str, signature: str) -> tuple[StoredObject, PieceList | None]:
        found, chunks = self._objects.read(key)
        hashed = hashlib.sha256()
        digests = PieceDigests(found.size) if found.size >= SMALLEST_FILE else None
        for chunk in chunks:
            hashed.update(chunk)
            if digests is not None:
                digests.update(chunk)
        if hashed.hexdigest() != signature:
            raise SignatureMismatch(f"the stored content's SHA-256 is {hashed.hexdigest()}")
        return found, digests.finish() if digests is not None else None
