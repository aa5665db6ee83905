"""`download`: fetches a source URL into the library. The file appears only when it is complete and verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import Conflict, NoSpace, QuotaExceeded, RecordNotFound, SignatureMismatch, WorkerLost
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.files.reading import TurnReader, saved_for_request
from tidegate.files.store import FileStore, Stored
from tidegate.files.verify import fault_of
from tidegate.ingest.fetching.fetcher import Fetcher
from tidegate.ingest.fetching.model import Fetched, Remote, Wanted
from tidegate.ingest.fetching.politeness import Politeness
from tidegate.ingest.fetching.ranges import SourceChanged
from tidegate.ingest.fetching.unfinished import UnfinishedStore
from tidegate.ingest.host_pauses import HostPauses
from tidegate.ingest.host_slots import HostSlots
from tidegate.ingest.model import ingested_object, part_count
from tidegate.ingest.ports import Outcome, Step
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.projects import Projects
from tidegate.queue.model import Request


class Download:
    def __init__(
        self,
        fetcher: Fetcher,
        parts: MultipartStore,
        reader: TurnReader,
        files: FileStore,
        projects: Projects,
        credentials: CredentialStore,
        unfinished: UnfinishedStore,
        pauses: HostPauses,
        slots: HostSlots,
    ) -> None:
        self._fetcher = fetcher
        self._parts = parts
        self._reader = reader
        self._files = files
        self._projects = projects
        self._credentials = credentials
        self._unfinished = unfinished
        self._pauses = pauses
        self._slots = slots

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = self._files.require(request.project_id, str(request.payload["file_id"]))
        if file.signature and (here := self._stored(request.project_id, file.signature)):
            return self._done(request, file, file.signature, here.size, etag=None, fetched=0)
        wanted = Wanted(
            request,
            ingested_object(request.project_id, request.request_id),
            signed=file.signature is not None,
            require_room=lambda size: self._require_room(request.project_id, size),
        )
        remote = self._remote(step)
        with self._slots.held(request, remote.url, remote.politeness.host_downloads, step.heartbeat) as heartbeat:
            got = self._fetcher.fetch(remote, wanted, heartbeat, step.seconds_left)
        if got is None:
            return Outcome(state={"goes_on": True})
        kept = self._keep(step, file, got)
        if kept is None:
            return Outcome(state={"goes_on": True})
        digest, stored = kept
        done = self._done(request, file, digest, got.size, got.etag, fetched=got.size, stored=stored)
        return replace(done, after=lambda: self._forget(request))

    def discard(self, request: Request) -> None:
        """Deletes the parts of a request that has ended and cannot be retried."""
        self._fetcher.discard(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self._reader.forget(saved_for_request(request.project_id, request.request_id))

    def _require_room(self, project_id: str, size: int) -> None:
        try:
            self._files.require_room(project_id, size)
        except QuotaExceeded as error:
            raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error

    def _remote(self, step: Step) -> Remote:
        request = step.request
        url, name = str(request.payload["source_url"]), request.payload.get("credentials")
        credential = self._credentials.get(request.project_id, str(name)) if name else None
        allow_private = self._projects.get(request.project_id).allow_private_urls
        # A subscription's list may name files on other servers: these are fetched without its credential.
        if credential and not request.subscription_id:
            credential.require(url, plain_text=allow_private)
        named = [url, *(str(mirror) for mirror in request.payload.get("mirrors") or ())]
        first, *mirrors = self._pauses.awake(request.project_id, named)
        return Remote(
            first,
            credential,
            allow_private,
            request.project_id,
            tuple(mirrors),
            Politeness.of(request.payload),
            on_pause=lambda asked, seconds: self._pauses.note(request.project_id, asked, seconds),
        )

    def _is_here(self, project_id: str, signature: str) -> bool:
        return self._stored(project_id, signature) is not None

    def _stored(self, project_id: str, signature: str) -> StoredObject | None:
        """The project's object with this content, if it has one."""
        known = self._files.has_content(project_id, signature)
        return self._parts.head(self._files.object_of(project_id, signature)) if known else None

    def _keep(self, step: Step, file: File, got: Fetched) -> tuple[str, Stored | None] | None:
        """Verifies what was fetched. Returns its SHA-256 and its object; no object if the content is stored already.

        None if it must be read from S3 for its SHA-256, and another invocation must continue.
        """
        project_id = step.request.project_id
        if got.small is not None and got.digest is not None:
            check(file, got.size, got.digest)
            if self._is_here(project_id, got.digest):
                return got.digest, None
            # A key of its own: the deletion of an earlier file with this content may still be on its way to S3.
            key = ingested_object(project_id, step.request.request_id)
            return got.digest, Stored(key, self._parts.put(key, got.small))
        key, upload_id = got.upload or ("", "")
        try:
            if got.digest is not None:
                check(file, got.size, got.digest)
            whole = self._parts.complete(key, upload_id, part_count(got.size))
            return self._placed(step, key, file, got, whole)
        except SignatureMismatch:
            self._parts.abort_upload(key, upload_id)
            self.discard(step.request)
            raise
        except (Conflict, RecordNotFound) as error:
            # The step ran twice, and the other run has finished: the next attempt finds what that one stored.
            self.discard(step.request)
            raise WorkerLost(
                "another run of this request completed or deleted the upload; the next attempt continues"
            ) from error

    def _placed(
        self, step: Step, key: str, file: File, got: Fetched, whole: StoredObject
    ) -> tuple[str, Stored | None] | None:
        project_id = step.request.project_id
        digest = got.digest or self._read_again(step, key, whole)
        if digest is None:
            return None
        try:
            check(file, whole.size, digest)
        except SignatureMismatch as error:
            self._parts.delete(key)
            if got.validated:
                raise
            # The source sends no ETag or Last-Modified, so this may be a mixture of two versions: fetch it again.
            self.discard(step.request)
            raise SourceChanged(error.detail) from error
        if self._is_here(project_id, digest):
            # Unless it is the content's object: another run of this step may have stored it.
            if self._files.object_of(project_id, digest) != key:
                self._parts.delete(key)
            return digest, None
        return digest, Stored(key, whole.etag)

    def _read_again(self, step: Step, key: str, stored: StoredObject) -> str | None:
        """The SHA-256 of the object, read from S3, because its parts were fetched by several invocations.

        None if another invocation must continue.
        """
        turn = step.turn(lambda _: {"bytes": stored.size, "total": stored.size, "step": "verify"})
        read = self._reader.check(key, stored, turn, pieces=False)
        return read.signature if read else None

    def _done(
        self,
        request: Request,
        file: File,
        digest: str,
        size: int | None,
        etag: str | None,
        fetched: int,
        stored: Stored | None = None,
    ) -> Outcome:
        ready = replace(file, state=READY, signature=digest, size=size, source_etag=etag, error=None)
        result: dict[str, Any] = {"file_id": file.file_id, "signature": digest, "size": size, "fetched_bytes": fetched}
        try:
            writes = self._files.finish_writes(ready, was=(COMING, FAILED), stored=stored)
        except QuotaExceeded as error:
            raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error
        return Outcome(result, [*writes, self._unfinished.forget_write(request)])


def check(file: File, size: int, digest: str) -> None:
    """SignatureMismatch if the content is not what was announced."""
    if fault := fault_of(file, size, digest):
        raise SignatureMismatch(fault)
