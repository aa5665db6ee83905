"""Ingest: brings files into the library, by downloads, subscriptions and archives.

The app makes one `Ingest`, which holds what the steps of a request use. Each step is a function that takes this object.
Importing any module of this package runs this file, so this file imports other modules only at their first use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.aws.s3 import MultipartStore, UploadBucket
    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.files.library import Library
    from tidegate.files.reading import ReadingTurn, TurnReader
    from tidegate.files.store import FileStore
    from tidegate.files.upload import Uploads
    from tidegate.http.client import SafeHttp
    from tidegate.ingest.download import HostPauses
    from tidegate.ingest.fetch import UnfinishedStore
    from tidegate.ingest.sources import Subscription, SubscriptionStore
    from tidegate.notifications.notices import Topic
    from tidegate.projects.limits import RunnerTime
    from tidegate.projects.projects import Projects
    from tidegate.projects.secrets import CredentialStore
    from tidegate.queue.model import Request
    from tidegate.queue.queue import Queue
    from tidegate.queue.schedules import Schedules
    from tidegate.settings import Settings


@dataclass(eq=False, repr=False, kw_only=True)
class Ingest:
    """The dependencies of the steps of ingest. The app passes in some of them. The others are made at first use."""

    settings: Settings
    clock: Clock
    table: Table
    s3: S3Client
    http: SafeHttp

    # --- parts of other capabilities
    queue: Queue
    files: FileStore
    bucket: UploadBucket
    uploads: Callable[[], Uploads]
    library: Callable[[], Library]
    projects: Projects
    credentials: CredentialStore
    topic: Topic
    runner_time: RunnerTime

    monotonic: Callable[[], float] = field(default=time.monotonic)

    @cached_property
    def parts(self) -> MultipartStore:
        from tidegate.aws.s3 import MultipartStore

        return MultipartStore(self.s3, self.settings.files_bucket)

    @cached_property
    def reader(self) -> TurnReader:
        from tidegate.files.reading import TurnReader

        return TurnReader(self.bucket)

    @cached_property
    def store(self) -> SubscriptionStore:
        from tidegate.ingest.sources import SubscriptionStore

        return SubscriptionStore(self.table)

    @cached_property
    def unfinished(self) -> UnfinishedStore:
        from tidegate.ingest.fetch import UnfinishedStore

        return UnfinishedStore(self.table, self.clock)

    @cached_property
    def host_pauses(self) -> HostPauses:
        from tidegate.ingest.download import HostPauses

        return HostPauses(self.table, self.clock)

    @cached_property
    def scans(self) -> Schedules[Subscription, None]:
        from tidegate.ingest.subscriptions import scan_schedules

        return scan_schedules(self)

    def without_file(self, ended: Request) -> list[Any]:
        """Returns the writes for a request that ended without its file. Returns none if the request completed.

        Its file becomes `failed`, and the next scan of its subscription queues the file again.
        """
        if ended.status == "completed" or "file_id" not in ended.payload:
            return []
        why = ended.error["detail"] if ended.error else ended.status
        writes: list[Any] = self.files.lost_writes(ended.project_id, str(ended.payload["file_id"]), why)
        if ended.subscription_id and "source_url" in ended.payload:
            url, fingerprint = str(ended.payload["source_url"]), ended.payload.get("fingerprint")
            of = (ended.project_id, ended.subscription_id, url, fingerprint)
            writes += self.store.forget_writes(*of, failed=ended.status == "failed")
        return writes

    def with_file_again(self, request: Request) -> list[Any]:
        """Returns the writes for a retry of a failed request. The file is `coming` again, and no scan queues it."""
        payload = request.payload
        if request.type == "verify":
            return list(self.files.verify_again_writes(request.project_id, str(payload["file_id"])))
        is_download = request.type == "download"
        writes: list[Any] = self.files.again_writes(
            request.project_id, str(payload.get("file_id")), brings_content=is_download
        )
        if request.subscription_id and payload.get("fingerprint"):
            entry = (str(payload["source_url"]), str(payload["fingerprint"]))
            writes += self.store.remember_writes(request.project_id, request.subscription_id, *entry)
        return writes


# Called with each change of the progress. Raises LeaseLost when this run no longer owns the request.
Heartbeat = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one invocation: the request, the time left, and the state from the previous invocation."""

    request: Request
    heartbeat: Heartbeat
    seconds_left: float
    state: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.monotonic)

    def turn(self, progress: Callable[[int], Mapping[str, Any]]) -> ReadingTurn:
        """Returns what is needed to read a file in this invocation.

        `progress` gets the number of bytes read so far, and returns the progress to report.
        """
        from tidegate.files.reading import ReadingTurn, saved_for_request

        saved = saved_for_request(self.request.project_id, self.request.request_id)
        return ReadingTurn(saved, self.began + self.seconds_left, lambda done: self.heartbeat(progress(done)))


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step returns: either the result and the writes for the end of the request, or a `state` to continue from.

    `after` is called when the end is stored. A crash may skip that call, so `after` must only clean up.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
    after: Callable[[], None] | None = None
