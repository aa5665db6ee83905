"""`download`: a source URL becomes a file of the library, whole and right or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import Conflict, RecordNotFound, SignatureMismatch, WorkerLost
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.files.store import FileStore
from tidegate.ingest.fetch import Fetched, Fetcher, Remote
from tidegate.ingest.model import Unfinished, staging_object
from tidegate.ingest.ports import Outcome, Step
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.projects import Projects


class Download:
    def __init__(
        self,
        fetcher: Fetcher,
        parts: MultipartStore,
        files: FileStore,
        projects: Projects,
        credentials: CredentialStore,
    ) -> None:
        self._fetcher = fetcher
        self._parts = parts
        self._files = files
        self._projects = projects
        self._credentials = credentials

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = self._files.get(request.project_id, str(request.payload["file_id"]))
        if file is None:
            raise RecordNotFound("the file's record is gone")
        if file.signature and self._is_here(request.project_id, file.signature):
            return self._done(file, file.signature, file.size, etag=None, fetched=0)
        key = staging_object(request.project_id, request.request_id, request.attempt)
        begun = Unfinished(**step.state) if step.state else None
        got = self._fetcher.fetch(self._remote(step), key, step.pulse, step.seconds_left, begun)
        if isinstance(got, Unfinished):
            return Outcome(state=got.as_data())
        digest = self._keep(request.project_id, key, file, got)
        return self._done(file, digest, got.size, got.etag, fetched=got.size)

    def _remote(self, step: Step) -> Remote:
        request = step.request
        url, name = str(request.payload["source_url"]), request.payload.get("credentials")
        credential = self._credentials.get(request.project_id, str(name)) if name else None
        allow_private = self._projects.get(request.project_id).allow_private_urls
        # A manifest may well name files on other servers: they are fetched without the subscription's credential.
        if credential and not request.subscription_id:
            credential.require(url, plain_text=allow_private)
        return Remote(url, credential, allow_private, request.project_id)

    def _is_here(self, project_id: str, signature: str) -> bool:
        known = self._files.has_content(project_id, signature)
        return known and self._parts.head(self._files.object_of(project_id, signature)) is not None

    def _keep(self, project_id: str, key: str, file: File, got: Fetched) -> str:
        """Moves what came to its content's place, if it is what was announced. Content that is there stays as it is."""
        if got.small is not None and got.digest is not None:
            check(file, got.size, got.digest)
            if not self._is_here(project_id, got.digest):
                self._parts.put(self._files.object_of(project_id, got.digest), got.small)
            return got.digest
        upload_id = str(got.upload_id)
        if got.digest is not None:
            try:
                check(file, got.size, got.digest)
            except SignatureMismatch:
                self._parts.abort(key, upload_id)
                raise
        try:
            return self._move(project_id, key, file, got.digest, self._parts.complete(key, upload_id))
        except (Conflict, RecordNotFound) as error:
            # A step may run twice, and the other run is done with it: the next attempt finds what that one brought.
            raise WorkerLost("another run of this step took away what was staged") from error

    def _move(self, project_id: str, key: str, file: File, digest: str | None, stored: StoredObject) -> str:
        try:
            digest = digest or self._read_again(key)
            check(file, stored.size, digest)
            if not self._is_here(project_id, digest):
                self._parts.copy(key, self._files.object_of(project_id, digest), only_if=stored)
        finally:
            self._parts.delete(key)
        return digest

    def _read_again(self, key: str) -> str:
        """A digest cannot be carried from one invocation to the next: what came in several is hashed from S3."""
        hashed = hashlib.sha256()
        for chunk in self._parts.read(key)[1]:
            hashed.update(chunk)
        return hashed.hexdigest()

    def _done(self, file: File, digest: str, size: int | None, etag: str | None, fetched: int) -> Outcome:
        ready = replace(file, state=READY, signature=digest, size=size, source_etag=etag, error=None)
        result: dict[str, Any] = {"file_id": file.file_id, "signature": digest, "size": size, "fetched_bytes": fetched}
        return Outcome(result, self._files.finish_writes(ready, was=(COMING, FAILED)))


def check(file: File, size: int, digest: str) -> None:
    if file.size is not None and file.size != size:
        raise SignatureMismatch(f"{size} bytes came, {file.size} were announced")
    if file.signature is not None and file.signature != digest:
        raise SignatureMismatch(f"the content's SHA-256 is {digest}, {file.signature} was announced")
