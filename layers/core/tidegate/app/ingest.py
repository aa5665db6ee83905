"""Wires ingest: downloads into the library, and subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.aws.s3 import MultipartStore
from tidegate.files.reading import TurnReader
from tidegate.ingest.archives import Extract
from tidegate.ingest.download import Download, HostPauses, HostSlots
from tidegate.ingest.fetch import Fetcher, UnfinishedStore
from tidegate.ingest.sources import SourceReader, SubscriptionStore
from tidegate.ingest.steps import Associate, Check, IngestSteps, Verify
from tidegate.ingest.submit import IngestSubmit
from tidegate.ingest.subscriptions import Scan, ScanSchedules, Subscriptions

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.queue.model import Request


class IngestPart:
    def __init__(self, app: App) -> None:
        settings, clock, queue, files = app.settings, app.clock, app.queue, app.files.store
        projects = app.projects.projects
        self._files = files
        self.parts = MultipartStore(app.s3, settings.files_bucket)
        self.store = SubscriptionStore(app.table)
        self.unfinished = UnfinishedStore(app.table, clock)
        self.submit = IngestSubmit(
            queue.queue, queue.channels, files, self.store, projects, app.http, clock, queue.unique
        )
        self.sources = SourceReader(app.http)
        quotas = app.projects.store
        scans = ScanSchedules(self.submit, queue.schedule_parts)
        self.subscriptions = Subscriptions(
            self.store, queue.store, queue.control, self.submit, self.sources, quotas, scans, clock
        )
        parts, credentials = self.parts, app.projects.credentials
        reader = TurnReader(app.files.bucket)
        self.host_pauses = pauses = HostPauses(app.table, clock)
        self.steps = IngestSteps(
            queue.queue,
            {
                "download": Download(
                    Fetcher(app.http, parts, self.unfinished),
                    parts,
                    reader,
                    files,
                    projects,
                    credentials,
                    self.unfinished,
                    pauses,
                    HostSlots(app.table, clock),
                ),
                "scan": Scan(self.sources, self.store, self.submit, projects, credentials, clock, pauses),
                "associate": Associate(parts, files),
                "check": Check(app.http, parts, reader, files, projects, credentials),
                "extract": Extract(parts, files, app.files.uploads, clock),
                "verify": Verify(app.files.uploads, reader),
            },
            app.notifications.progress.progress,
            queue.log,
            clock,
            app.projects.runner_time,
        )

    def without_file(self, ended: Request) -> list[Any]:
        """Writes for a request that did not complete: its file becomes `failed`, and the next scan queues it again."""
        if ended.status == "completed" or "file_id" not in ended.payload:
            return []
        why = ended.error["detail"] if ended.error else ended.status
        writes: list[Any] = self._files.lost_writes(ended.project_id, str(ended.payload["file_id"]), why)
        if ended.subscription_id and "source_url" in ended.payload:
            url, fingerprint = str(ended.payload["source_url"]), ended.payload.get("fingerprint")
            failed = str(fingerprint) if fingerprint and ended.status == "failed" else None
            writes += self.store.forget_writes(ended.project_id, ended.subscription_id, url, failed)
        return writes

    def with_file_again(self, request: Request) -> list[Any]:
        """Writes for a failed request that is retried: its file is `coming` again, and no scan queues it too."""
        payload = request.payload
        if request.type == "verify":
            return list(self._files.verify_again_writes(request.project_id, str(payload["file_id"])))
        is_download = request.type == "download"
        writes: list[Any] = self._files.again_writes(
            request.project_id, str(payload.get("file_id")), brings_content=is_download
        )
        if request.subscription_id and payload.get("fingerprint"):
            entry = (str(payload["source_url"]), str(payload["fingerprint"]))
            writes += self.store.remember_writes(request.project_id, request.subscription_id, *entry)
        return writes
