from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate_client.content import Progress, sha256_of, upload
from tidegate_client.download import download_to
from tidegate_client.http import Http, path_part
from tidegate_client.models import File, FileCreated, Link, Page
from tidegate_client.resources.paging import one_page


class Files:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        idempotency_key: str | None = None,
        **optional: Any,
    ) -> FileCreated:
        """`optional`: file_name, signature, size, source_url, channel, credentials, priority."""
        body = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path}
        body |= {name: value for name, value in optional.items() if value is not None}
        return FileCreated(self._http.create("/v1/files", body, idempotency_key=idempotency_key))

    def complete(self, file_id: str) -> File:
        return File(self._http.act(f"/v1/files/{path_part(file_id)}/complete", idempotent=True))

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
        return one_page(self._http, "/v1/files", query, limit, cursor, File)

    def url(self, file_id: str) -> Link:
        return Link(self._http.get(f"/v1/files/{path_part(file_id)}/url"))

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
        """Upload a local file: create, PUT the bytes, complete."""
        created = self.create(
            biz_id=biz_id,
            app_id=app_id,
            file_path=file_path,
            file_name=file_name or source.name,
            signature=sha256_of(source),
            size=source.stat().st_size,
        )
        if upload_url := created.get("upload_url"):
            headers = created.get("upload_headers")
            upload(self._http.pool, upload_url, source, headers=headers, on_progress=on_progress)
            return self.complete(created["file_id"])
        return self.get(created["file_id"])

    def fetch(self, file_id: str, destination: Path, *, on_progress: Progress | None = None) -> File:
        """Download into `destination`, resuming a cut connection; it appears only when whole and right."""
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
