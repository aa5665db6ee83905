from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate_client.download import download_to
from tidegate_client.errors import NotFound, TransferError
from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import File, FileCreated, FileOptions, Link, Request
from tidegate_client.resources.paging import Resource
from tidegate_client.uploads import PARTS_FROM, Journal, Progress, send_parts, sha256_of, upload

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Files(Resource):
    """The library: upload, ingest, download and list files."""

    def create(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        idempotency_key: str | None = None,
        **options: Unpack[FileOptions],
    ) -> FileCreated:
        """Starts an upload, or the ingest of a file from `source_url`. Returns the file's id and upload URLs."""
        body: dict[str, object] = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        body |= {name: value for name, value in options.items() if value is not None}
        return FileCreated(self._http.create("/v1/files", body, idempotency_key=idempotency_key))

    def parts(self, file_id: str, numbers: Sequence[int], sizes: Sequence[int] | None = None) -> dict[int, str]:
        """Returns the presigned URLs of an upload's parts by part number, for at most 100 parts.

        `sizes`: the length of each part, needed if the upload was started without the file's size. Otherwise each
        part uses 5 GiB of the storage quota until its URL expires."""
        body = {"numbers": [*numbers]} | ({"sizes": [*sizes]} if sizes else {})
        answer = self._http.act(f"/v1/files/{path_part(file_id)}/parts", body, idempotent=True)
        return {part["number"]: part["url"] for part in answer["parts"]}

    def complete(self, file_id: str, parts: Sequence[Mapping[str, Any]] = ()) -> File:
        """Ends an upload: the API checks size and SHA-256. A large file is `verifying` first; call `wait` for it.

        `parts`: number and ETag of every part, if the file was uploaded in parts."""
        body = {"parts": [*parts]} if parts else None
        return File(self._http.act(f"/v1/files/{path_part(file_id)}/complete", body, idempotent=True))

    def delete(self, file_id: str) -> None:
        """Deletes a file; raises Conflict while a Job needs it."""
        self._http.call("DELETE", f"/v1/files/{path_part(file_id)}", idempotent=True)

    def wait(self, file_id: str, *, timeout: float = 3600) -> File:
        """Waits until the file is ready.
        Raises TransferError if its content was refused, or after `timeout` seconds."""
        deadline, pause = time.monotonic() + timeout, 0.2
        while True:
            record = self.get(file_id)
            if record["state"] == "ready":
                return record
            if record["state"] == "failed":
                raise TransferError(f"{file_id} failed: {record.get('error', 'the API gives no reason')}")
            if time.monotonic() > deadline:
                raise TransferError(f"{file_id} is still {record['state']} after {timeout:g} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 5)

    def get(self, file_id: str) -> File:
        return File(self._http.get(f"/v1/files/{path_part(file_id)}"))

    def list(
        self,
        *,
        biz_id: int | None = None,
        app_id: int | None = None,
        file_path: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[File]:
        query = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        return self._page("/v1/files", query, limit, cursor, File)

    def url(self, file_id: str) -> Link:
        """Returns a presigned URL of the content, valid for five minutes."""
        return Link(self._http.get(f"/v1/files/{path_part(file_id)}/url"))

    def extract(
        self, file_id: str, file_path: str, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> Request:
        """Queues the extraction of a zip or tar file and returns the request. Its files get paths below `file_path`."""
        payload = {"file_id": file_id, "file_path": file_path, "include": [*include], "exclude": [*exclude]}
        return Request(self._http.create("/v1/requests", {"type": "extract", "payload": payload}))

    def put(
        self,
        source: Path,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        file_name: str | None = None,
        on_progress: Progress | None = None,
    ) -> File:
        """Uploads a local file. A file over 64 MiB is sent in parts, and an interrupted upload is resumed."""
        target: dict[str, Any] = {
            "biz_id": biz_id,
            "app_id": app_id,
            "file_path": file_path,
            "file_name": file_name or source.name,
        }
        if source.stat().st_size > PARTS_FROM:
            return self._put_parts(source, target, on_progress)
        created = self.create(**target, signature=sha256_of(source), size=source.stat().st_size)
        if upload_url := created.get("upload_url"):
            headers = created.get("upload_headers")
            upload(self._http.pool, upload_url, source, headers=headers, on_progress=on_progress)
            return self.complete(created["file_id"])
        return self.get(created["file_id"])

    def _put_parts(self, source: Path, target: dict[str, Any], on_progress: Progress | None) -> File:
        journal = Journal.for_upload(source, {**target, "api": self._http.api_url})
        if journal.file_id and self._state(journal.file_id) not in ("pending", "verifying", "ready"):
            journal.forget()
        if not journal.file_id:
            signature = journal.signature or sha256_of(source)
            size = source.stat().st_size
            created = self.create(**target, signature=signature, size=size, multipart=True)
            journal.begin(created["file_id"], signature, created["upload"]["part_size"])
        file_id = journal.file_id
        if self._state(file_id) == "pending":
            parts = send_parts(
                self._http.pool, source, journal, lambda numbers: self.parts(file_id, numbers), on_progress
            )
            self.complete(file_id, parts)
        try:
            return self.wait(file_id)
        finally:
            if self._state(file_id) in ("ready", "failed"):
                journal.forget()

    def _state(self, file_id: str) -> str:
        try:
            return self.get(file_id).state
        except NotFound:
            return "not_found"

    def fetch(self, file_id: str, destination: Path, *, on_progress: Progress | None = None) -> File:
        """Downloads the file to `destination`, which exists only once it is complete and its SHA-256 is right."""
        record = self.get(file_id)
        download_to(
            self._http.pool,
            lambda _refused: self.url(file_id)["url"],
            destination,
            size=record.get("size"),
            signature=record.get("signature"),
            on_progress=on_progress,
        )
        return record
