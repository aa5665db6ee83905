"""Wires the library of files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.aws.s3 import UploadBucket
from tidegate.files.library import ContentStore, Library
from tidegate.files.store import FileStore

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.files.model import File
    from tidegate.files.upload import Uploads


class FilesPart:
    def __init__(self, app: App) -> None:
        self._app = app
        self.bucket = UploadBucket(app.s3, app.settings.files_bucket)
        self.store = FileStore(app.table)
        self.contents = ContentStore(app.table)
        self.library = Library(self.store, self.bucket, app.clock)

    @cached_property
    def uploads(self) -> Uploads:
        """Made at its first use, because it needs the queue, in which large uploads are verified."""
        from tidegate.files.model import seconds_to_read
        from tidegate.files.upload import Uploads

        def enqueue(file: File, writes: Sequence[Any], who: str) -> None:
            queue = self._app.queue.queue
            queue.submit(
                file.project_id,
                "verify",
                payload={"file_id": file.file_id},
                request_id=file.request_id,
                callback=file.callback,
                extra_writes=writes,
                timeout=queue.policy("verify").timeout + seconds_to_read(file.size),
                who=who,
            )

        return Uploads(self.store, self.bucket, self._app.clock, enqueue)
