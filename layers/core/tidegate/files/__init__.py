"""The library of files. The app makes one `Files`, whose parts are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.aws.s3 import UploadBucket
    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.files.library import ContentStore, Library
    from tidegate.files.model import File
    from tidegate.files.store import FileStore
    from tidegate.files.upload import Uploads


@dataclass(eq=False, repr=False, kw_only=True)
class Files:
    """The parts of the library. The app passes in some of them. The others are made at their first use."""

    bucket_name: str
    clock: Clock
    table: Table
    s3: S3Client
    # Called with (file, further writes, key id): queues the verification of a large upload.
    queue_verification: Callable[[File, Sequence[Any], str], None]

    @cached_property
    def bucket(self) -> UploadBucket:
        from tidegate.aws.s3 import UploadBucket

        return UploadBucket(self.s3, self.bucket_name)

    @cached_property
    def store(self) -> FileStore:
        from tidegate.files.store import FileStore

        return FileStore(self.table)

    @cached_property
    def contents(self) -> ContentStore:
        from tidegate.files.library import ContentStore

        return ContentStore(self.table)

    @cached_property
    def library(self) -> Library:
        from tidegate.files.library import Library

        return Library(self.store, self.bucket, self.clock)

    @cached_property
    def uploads(self) -> Uploads:
        from tidegate.files.upload import Uploads

        return Uploads(self.store, self.bucket, self.clock, self.queue_verification)
