"""Checks before a dispatch that the file is stored and matches its signature."""

from __future__ import annotations

from tidegate.aws.s3_uploads import UploadBucket
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.targets import DONE, IN_PROGRESS
from tidegate.errors import FileNotFound, SignatureMismatch, TransferRefused
from tidegate.files.contents import Content, ContentStore
from tidegate.files.model import COMING, READY
from tidegate.files.pieces import SMALLEST_FILE
from tidegate.files.verify import check

READY_TO_SEND, WAITING, OVER = "ready", "waiting", "over"


class PrepareFile:
    def __init__(
        self,
        contents: ContentStore,
        objects: UploadBucket,
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
        content = self._contents.get(project_id, job.spec.file_signature)
        if content is None or content.state not in (READY, COMING):
            raise FileNotFound(
                f"the library has no file with the SHA-256 {job.spec.file_signature}, and no ingest is fetching it: "
                "upload it and submit again"
            )
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
        """Returns the size. Reads the object only if it was not verified since it was stored."""
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
            read = check(self._objects, key, found)
            if read.signature != signature:
                raise SignatureMismatch(
                    f"the stored content's SHA-256 is {read.signature}, not {signature}: upload the file again"
                )
            if read.pieces is not None:
                # Stored before the content's record names them, so that a named list can be read.
                for name, listed in read.pieces.objects(job.project_id, signature).items():
                    self._objects.put(name, listed)
            self._contents.checked(job.project_id, signature, read.etag, read.pieces)
        return found.size
