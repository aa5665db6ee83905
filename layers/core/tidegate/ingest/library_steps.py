"""`associate` makes a file of content that is stored already. `check` verifies stored content against its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.common.json_input import whole_number
from tidegate.errors import FetchError, FileNotFound, Gone, NotFound, RecordNotFound, SignatureMismatch, WrongState
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.files.reading import TurnReader, saved_for_request
from tidegate.files.store import FileStore
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits
from tidegate.ingest.model import MAX_BYTES
from tidegate.ingest.ports import Outcome, Step
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.projects import Projects
from tidegate.queue.model import Request


class Associate:
    def __init__(self, parts: MultipartStore, files: FileStore) -> None:
        self._parts = parts
        self._files = files

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = _file(self._files, request.project_id, request.payload)
        signature = str(file.signature)
        stored = self._parts.head(self._files.object_of(request.project_id, signature))
        if stored is None or not self._files.has_content(request.project_id, signature):
            raise FileNotFound(f"this project has no content with the SHA-256 {signature}: upload or download it first")
        bound = replace(file, state=READY, size=stored.size, error=None)
        result = {"file_id": file.file_id, "signature": signature, "size": stored.size}
        return Outcome(result, self._files.finish_writes(bound, was=(COMING, FAILED)))


class Check:
    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        reader: TurnReader,
        files: FileStore,
        projects: Projects,
        credentials: CredentialStore,
    ) -> None:
        self._http = http
        self._parts = parts
        self._reader = reader
        self._files = files
        self._projects = projects
        self._credentials = credentials

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = _file(self._files, request.project_id, request.payload)
        if file.state != READY or file.signature is None:
            raise WrongState(f"the file {file.file_id} is {file.state}: check it when it is ready")
        key = self._files.object_of(request.project_id, file.signature)
        stored = self._parts.head(key)
        if stored is None:
            raise RecordNotFound("the content is gone from the bucket: upload or fetch the file again")
        read = self._reader.check(key, stored, step.turn(lambda _: {}), pieces=False)
        if read is None:
            return Outcome(state={"goes_on": True})
        if read.signature != file.signature:
            self.discard(request)
            raise SignatureMismatch(
                f"the stored content's SHA-256 is {read.signature}, not {file.signature}: upload the file again"
            )
        result = {"file_id": file.file_id, "signature": file.signature, "size": stored.size}
        url = request.payload.get("source_url") or file.source_url
        if url:
            result["source"] = self._source(step, file, str(url))
        return Outcome(result, after=lambda: self.discard(request))

    def discard(self, request: Request) -> None:
        """Deletes the saved digest of a request that has ended."""
        self._reader.forget(saved_for_request(request.project_id, request.request_id))

    def _source(self, step: Step, file: File, url: str) -> str:
        """`same`, `changed`, `gone`, or `unknown` if the source sends neither a size nor an ETag."""
        project_id = step.request.project_id
        name = step.request.payload.get("credentials")
        credential = self._credentials.get(project_id, str(name)) if name else None
        allow_private = self._projects.get(project_id).allow_private_urls
        if credential:
            credential.require(url, plain_text=allow_private)
        reply = self._http.send(
            "HEAD",
            url,
            credential=credential,
            allow_private=allow_private,
            limits=Limits(total=20, max_bytes=MAX_BYTES),
            project_id=project_id,
        )
        try:
            reply.raise_for_status()
        except (NotFound, Gone):
            return "gone"
        except FetchError as error:
            if error.retryable:
                raise
            return "unknown"
        return _compared(file, reply.headers)


def _compared(file: File, headers: Mapping[str, str]) -> str:
    etag, length = headers.get("etag"), headers.get("content-length", "")
    matches = []
    if file.source_etag and etag:
        matches.append(etag.removeprefix("W/") == file.source_etag.removeprefix("W/"))
    if (size := whole_number(length)) is not None:
        matches.append(size == file.size)
    return "unknown" if not matches else "same" if all(matches) else "changed"


def _file(files: FileStore, project_id: str, payload: Mapping[str, Any]) -> File:
    return files.require(project_id, str(payload["file_id"]))
