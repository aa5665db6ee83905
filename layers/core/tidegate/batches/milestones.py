"""Sends a webhook each time a batch has completed another n items, or another n percent."""

from __future__ import annotations

from tidegate.aws.table import Table
from tidegate.batches.model import Batch
from tidegate.batches.progress import Progress
from tidegate.batches.view import shown
from tidegate.common.ids import Clock
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.notify import Notifier
from tidegate.notifications.outbox import notice_write


class Milestones:
    def __init__(self, table: Table, notifier: Notifier, clock: Clock) -> None:
        self._table = table
        self._notifier = notifier
        self._clock = clock

    def notify(self, batch: Batch, progress: Progress, last: int) -> int:
        """Sends a notice if a milestone after `last` was passed. Returns the last milestone, to be saved afterwards.

        A crash before that save sends the notice twice, with the same id. If several milestones were passed at once,
        only the last one is sent. The end of the batch has a notice of its own.
        """
        reached = batch.milestone(progress.position)
        over = batch.total is not None and progress.position >= batch.total
        if reached <= last or batch.progress_url is None or over:
            return max(last, reached)
        now = self._clock()
        notice = Notice(
            notice_id=notice_id_for("batch.progress", batch.batch_id, str(reached)),
            project_id=batch.project_id,
            kind="batch.progress",
            record_id=batch.batch_id,
            status=batch.status,
            data=shown(batch, progress),
            callback=batch.progress_url,
            created_at=now,
        )
        self._table.write(notice_write(notice))
        self._notifier.publish([notice])
        return reached
