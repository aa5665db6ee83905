"""Projects, keys and files."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.adapters.dynamo.api_keys import ApiKeyRepository
    from tidegate.adapters.dynamo.files import FileRepository
    from tidegate.adapters.s3 import Bucket
    from tidegate.services.authentication import Authentication
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
        from tidegate.services.projects import Projects

        return Projects(self.project_store, self.clock)

    @cached_property
    def api_key_store(self) -> ApiKeyRepository:
        from tidegate.adapters.dynamo.api_keys import ApiKeyRepository

        return ApiKeyRepository(self.table)

    @cached_property
    def authentication(self) -> Authentication:
        from tidegate.services.authentication import Authentication

        return Authentication(self.api_key_store, self.clock, self.settings.admin_key_sha256)

    @cached_property
    def known_keys(self) -> KnownKeys:
        from tidegate.services.known_keys import KnownKeys

        return KnownKeys(self.authentication.describe, self.clock, self.settings.key_cache_seconds)

    @cached_property
    def file_store(self) -> FileRepository:
        from tidegate.adapters.dynamo.files import FileRepository

        return FileRepository(self.table)

    @cached_property
    def files(self) -> Files:
        from tidegate.services.files import Files

        return Files(self.file_store, self.bucket, self.clock)
