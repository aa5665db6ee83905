"""Batches: a business processes many items at a limited rate. A business is a service with an HTTP address.

The app makes one `Batches`. It holds the objects that the steps of a batch use. Each step is a function that takes the
`Batches`. Importing any module of this package runs this file. So this file imports other modules only when they are
first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.aws.s3 import Bucket
    from tidegate.aws.table import Table, Write
    from tidegate.batches.items import ItemResults, Outcomes
    from tidegate.batches.model import NewBatch
    from tidegate.batches.rows import RowBucket, RowFiles
    from tidegate.batches.schedules import BatchSchedule
    from tidegate.batches.store import BatchStore, BusinessStore
    from tidegate.common.ids import Clock
    from tidegate.files.library import Library
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.notices import Notifier, Topic
    from tidegate.projects.limits import RunnerTime
    from tidegate.projects.model import Project, Quotas
    from tidegate.projects.secrets import Signer
    from tidegate.queue.model import Request
    from tidegate.queue.queue import Queue
    from tidegate.queue.schedules import Schedules
    from tidegate.settings import Settings


class SliceTiming(NamedTuple):
    slice_seconds: float = 600.0
    lease_seconds: float = 15.0


@dataclass(eq=False, repr=False, kw_only=True)
class Batches:
    """The dependencies of the steps of batches: some are passed in by the app, the others are made at first use."""

    settings: Settings
    clock: Clock
    table: Table
    s3: S3Client
    http: SafeHttp
    sign: Signer

    # --- parts of other capabilities
    bucket: Bucket
    library: Library
    # Returns the S3 key of a file's content, from project_id and signature.
    object_of: Callable[[str, str], str]
    project: Callable[[str], Project]
    quotas: Callable[[str], Quotas]
    runner_time: RunnerTime
    check_urls: Callable[[str, Mapping[str, str | None]], None]
    notifier: Notifier
    topic: Topic
    queue: Queue
    # Raises SourceNotGranted unless the project may read this source. The last argument is the path of the source in
    # the request body, for the error.
    require_source: Callable[[str, Mapping[str, Any], Sequence[str]], None]

    # --- settings as the steps need them

    @cached_property
    def timing(self) -> SliceTiming:
        return SliceTiming(self.settings.batch_slice_seconds, self.settings.batch_lease_seconds)

    @cached_property
    def channel_names(self) -> list[str]:
        """The names of the queue's channels for batches."""
        return [name for name in self.settings.batch_channels.split(",") if name]

    # --- stores

    @cached_property
    def store(self) -> BatchStore:
        from tidegate.batches.store import BatchStore

        return BatchStore(self.table, self.settings.batch_retention_days * 86400)

    @cached_property
    def businesses(self) -> BusinessStore:
        from tidegate.batches.store import BusinessStore

        return BusinessStore(self.table)

    @cached_property
    def objects(self) -> RowBucket:
        from tidegate.batches.rows import RowBucket

        return RowBucket(self.s3, self.bucket)

    @cached_property
    def rows(self) -> RowFiles:
        from tidegate.batches.rows import RowFiles

        return RowFiles(self.objects, self.object_of)

    @cached_property
    def outcomes(self) -> Outcomes:
        from tidegate.batches.items import Outcomes

        return Outcomes(self.objects)

    @cached_property
    def results(self) -> ItemResults:
        from tidegate.batches.items import ItemResults

        return ItemResults(self.table)

    @cached_property
    def schedules(self) -> Schedules[BatchSchedule, NewBatch]:
        from tidegate.batches.schedules import batch_schedules

        return batch_schedules(self)

    # --- for other capabilities

    def view(self, project_id: str, batch_id: str) -> dict[str, Any] | None:
        """Returns the batch as the API shows it; None if it does not exist."""
        return self.views(project_id, [batch_id]).get(batch_id)

    def views(self, project_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        from tidegate.batches.batches import get_many

        return get_many(self, project_id, batch_ids)

    def view_at_end(self, request: Request) -> dict[str, Any]:
        from tidegate.batches.control import view_at_end

        return view_at_end(self, request)

    def end_writes(self, request: Request) -> Sequence[Write]:
        from tidegate.batches.control import end_writes

        return end_writes(self, request)

    def act_when_due(self, item: Mapping[str, Any]) -> bool:
        """Does the overdue step of a batch that the item's `due_kind` names. Returns whether the step was done.

        Called by compensation.
        """
        from tidegate.batches import batches, control

        acts = {
            "batch_ask": control.ask_again,
            "batch_wait": control.give_up_waiting,
            "batch_unstarted": batches.delete_unstarted,
            "batch_ended": batches.delete_ended,
            "batch_deleted": batches.finish_delete,
        }
        return acts[item["due_kind"]](self, item["project_id"], item["batch_id"])
