"""Keeps large objects of the local cloud on disk.

MiniStack keeps the parts of an upload in memory and joins them there. It also reads a whole object to answer one range
of it. A file of 20 GB would take twice its size in memory. Here, parts and objects above a limit are files, and they
are streamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
SPILLED_PART = 4 * MIB
LARGE_OBJECT = 64 * MIB
_CHUNK = MIB

Answer = tuple[int, dict[str, str], bytes]
Send = Callable[..., Coroutine[Any, Any, None]]


class OnDisk(bytes):
    """A range of a file that stands for its bytes.

    This works where MiniStack only measures, slices or sends the bytes."""

    path: Path
    start: int
    size: int
    # The digest of a part, computed when it was uploaded.
    known_md5: bytes | None = None
    # Whether the file is deleted with this object. A part's file is, once it was joined or its upload was aborted.
    owned = False

    @classmethod
    def span(cls, path: Path, start: int, size: int) -> OnDisk:
        part = cls()
        part.path, part.start, part.size = path, start, size
        return part

    def __del__(self) -> None:
        if self.owned:
            self.path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __getitem__(self, cut: Any) -> Any:
        if not isinstance(cut, slice):
            raise TypeError("only slices of an object on disk can be read")
        start, stop, _ = cut.indices(self.size)
        return OnDisk.span(self.path, self.start + start, max(0, stop - start))

    def chunks(self) -> Any:
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.size
            while left and (chunk := file.read(min(_CHUNK, left))):
                left -= len(chunk)
                yield chunk

    def md5(self) -> Any:
        digest = hashlib.md5(usedforsecurity=False)
        for chunk in self.chunks():
            digest.update(chunk)
        return digest


def streamed(send_response: Send) -> Send:
    """Wraps MiniStack's `send_response`: bodies on disk are sent in chunks, as fast as the receiver reads."""

    async def sent(send: Any, status: int, headers: dict[str, str], body: Any, **kwargs: Any) -> None:
        if not isinstance(body, OnDisk):
            await send_response(send, status, headers, body, **kwargs)
            return
        headers["Content-Length"] = str(len(body))
        listed = [(name.lower().encode(), str(value).encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": listed})
        for chunk in body.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sent


class LargeObjects:
    """Replaces the functions of MiniStack's S3 that handle bodies."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._joining: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._upload_part, self._complete = s3._upload_part, s3._complete_multipart_upload
        self._persist, self._read, self._md5_hash = s3._persist_object, s3._read_body, s3.md5_hash

    def install(self) -> None:
        s3 = self._s3
        s3._upload_part, s3._complete_multipart_upload = self.upload_part, self.complete
        s3._persist_object, s3._read_body, s3.md5_hash = self.persist, self.read, self.md5_hash
        s3.hashlib = SimpleNamespace(**{**vars(hashlib), "md5": self.md5})

    def upload_part(self, bucket: str, key: str, body: bytes, query: Any, headers: Any) -> Answer:
        answer: Answer = self._upload_part(bucket, key, body, query, headers)
        if answer[0] == 200 and len(body) >= SPILLED_PART:
            part = self._upload(query)["parts"][int(self._s3._qp(query, "partNumber"))]
            part["body"] = spilled(body)
            part["body"].known_md5 = bytes.fromhex(part["etag"].strip('"'))
        return answer

    def complete(self, bucket: str, key: str, body: bytes, query: Any, headers: Any = None) -> Answer:
        upload = self._upload(query)
        numbers = sorted({int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)})
        parts = [upload["parts"][number] for number in numbers if number in upload["parts"]] if upload else []
        if sum(part["size"] for part in parts) <= LARGE_OBJECT:
            for part in parts:
                part["body"] = read_whole(part["body"])
        else:
            self._joining[bucket, key] = parts
        try:
            answer: Answer = self._complete(bucket, key, body, query, headers)
        finally:
            self._joining.pop((bucket, key), None)
        return answer

    def persist(self, bucket: str, key: str, obj: Any) -> None:
        parts = self._joining.pop((bucket, key), None)
        if parts:
            path = Path(self._s3._object_disk_path(bucket, key))
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            join(parts, path)
            obj["body"], obj["size"] = None, sum(part["size"] for part in parts)
        self._persist(bucket, key, obj)

    def read(self, bucket: str, key: str, obj: dict[str, Any]) -> bytes:
        if obj.get("body") is not None or obj.get("size", 0) <= LARGE_OBJECT:
            return bytes(self._read(bucket, key, obj))
        return OnDisk.span(Path(self._s3._object_disk_path(bucket, key)), 0, obj["size"])

    def md5(self, data: bytes = b"", **options: Any) -> Any:
        if not isinstance(data, OnDisk):
            return hashlib.md5(data, **options)  # noqa: S324 - S3's ETags are MD5 digests
        return SimpleNamespace(digest=lambda: data.known_md5) if data.known_md5 else data.md5()

    def md5_hash(self, data: bytes) -> str:
        return str(data.md5().hexdigest()) if isinstance(data, OnDisk) else str(self._md5_hash(data))

    def _upload(self, query: Any) -> dict[str, Any]:
        upload: dict[str, Any] = self._s3._multipart_uploads.get(self._s3._qp(query, "uploadId")) or {}
        return upload


def read_whole(body: bytes) -> bytes:
    if not isinstance(body, OnDisk):
        return body
    return b"".join(body.chunks())


def spilled(body: bytes) -> OnDisk:
    """Writes a part to a temporary file. A part of zeros takes no disk space."""
    handle, name = tempfile.mkstemp(prefix="part-")
    with os.fdopen(handle, "wb") as file:
        if body == bytes(len(body)):
            file.truncate(len(body))
        else:
            file.write(body)
    part = OnDisk.span(Path(name), 0, len(body))
    part.owned = True
    return part


def join(parts: list[dict[str, Any]], path: Path) -> None:
    """Appends the parts to the file.

    Each part is deleted once it was copied, so that little more disk space is needed."""
    with path.open("wb") as out:
        for part in parts:
            body = part["body"]
            if isinstance(body, OnDisk):
                if not is_hole(body.path):
                    for chunk in body.chunks():
                        out.write(chunk)
                else:
                    out.seek(len(body), os.SEEK_CUR)
                body.path.unlink(missing_ok=True)
            else:
                out.write(body)
        out.truncate(sum(part["size"] for part in parts))


def is_hole(path: Path) -> bool:
    """Returns whether the file has no data blocks, so that all its bytes are zeros."""
    with path.open("rb") as file, contextlib.suppress(OSError):
        os.lseek(file.fileno(), 0, os.SEEK_DATA)
        return False
    return True
