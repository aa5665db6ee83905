"""Ingest and subscriptions: what brings files into the library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.outbound import OutboundWiring
from tidegate.bootstrap.queue import QueueWiring

if TYPE_CHECKING:
    from tidegate.aws.s3_multipart import MultipartStore
    from tidegate.aws.secrets import CredentialStore
    from tidegate.compensation.poll import DueHandler
    from tidegate.ingest.steps import Ingest
    from tidegate.ingest.store import SubscriptionRepository
    from tidegate.ingest.submit import Intake
    from tidegate.ingest.subscriptions import Subscriptions
    from tidegate.queue.model import Request
    from tidegate.queue.ports import Ending


class IngestWiring(LibraryWiring, QueueWiring, OutboundWiring):
    @cached_property
    def credentials(self) -> CredentialStore:
        from tidegate.aws.secrets import CredentialStore

        return CredentialStore(self.secretsmanager, self.settings.secrets_prefix)

    @cached_property
    def parts(self) -> MultipartStore:
        from tidegate.aws.s3_multipart import MultipartStore

        return MultipartStore(self.s3, self.settings.files_bucket)

    @cached_property
    def subscription_store(self) -> SubscriptionRepository:
        from tidegate.ingest.store import SubscriptionRepository

        return SubscriptionRepository(self.table)

    @cached_property
    def intake(self) -> Intake:
        from tidegate.ingest.submit import Intake

        return Intake(
            self.queue,
            self.channels,
            self.file_store,
            self.subscription_store,
            self.projects,
            self.http,
            self.clock,
        )

    @cached_property
    def subscriptions(self) -> Subscriptions:
        from tidegate.ingest.subscriptions import Subscriptions

        return Subscriptions(
            self.subscription_store, self.request_store, self.queue, self.control, self.intake, self.clock
        )

    @cached_property
    def ingest(self) -> Ingest:
        from tidegate.ingest.download import Download
        from tidegate.ingest.fetch import Fetcher
        from tidegate.ingest.library_steps import Associate, Check
        from tidegate.ingest.scan import Scan
        from tidegate.ingest.steps import Ingest, Work

        files, parts, projects, credentials = self.file_store, self.parts, self.projects, self.credentials
        work: dict[str, Work] = {
            "download": Download(Fetcher(self.http, parts), parts, files, projects, credentials),
            "scan": Scan(self.http, self.subscription_store, self.intake, projects, credentials, self.clock),
            "associate": Associate(parts, files),
            "check": Check(self.http, parts, files, projects, credentials),
        }
        return Ingest(self.queue, work, self.live.progress)

    def request_endings(self) -> dict[str, Ending]:
        return super().request_endings() | {"download": self._without_file, "associate": self._without_file}

    def _without_file(self, ended: Request) -> Sequence[Any]:
        """A file that will not come says so; the subscription's next scan takes it for new."""
        if ended.status == "completed" or "file_id" not in ended.payload:
            return ()
        why = ended.error["detail"] if ended.error else ended.status
        writes: list[Any] = self.file_store.lost_writes(ended.project_id, str(ended.payload["file_id"]), why)
        if ended.subscription_id and "source_url" in ended.payload:
            url = str(ended.payload["source_url"])
            writes.append(self.subscription_store.forget_write(ended.project_id, ended.subscription_id, url))
        return writes

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"subscription": self._go_on_deleting}

    def _go_on_deleting(self, item: dict[str, Any]) -> None:
        self.subscriptions.finish_delete(item["project_id"], item["subscription_id"])
