"""Projects, keys and files."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.adapters.dynamo.files import FileRepository
    from tidegate.adapters.s3 import Bucket
    from tidegate.services.files import Files
    from tidegate.services.known_keys import KnownKeys
    from tidegate.services.projects import Projects


class LibraryWiring(Base):
    @cached_property
    def bucket(self) -> Bucket:
        from tidegate.adapters.s3 import Bucket

        return Bucket(self.s3, self.settings.files_bucket)

    @cached_property
    def projects(self) -> Projects:
        from tidegate.adapters.dynamo.projects import ProjectRepository
        from tidegate.services.projects import Projects

        return Projects(ProjectRepository(self.table), self.clock, self.settings.admin_key_sha256)

    @cached_property
    def known_keys(self) -> KnownKeys:
        from tidegate.services.known_keys import KnownKeys

        return KnownKeys(self.projects.describe, self.clock, self.settings.key_cache_seconds)

    @cached_property
    def file_store(self) -> FileRepository:
        from tidegate.adapters.dynamo.files import FileRepository

        return FileRepository(self.table)

    @cached_property
    def files(self) -> Files:
        from tidegate.services.files import Files

        return Files(self.file_store, self.bucket, self.clock)
