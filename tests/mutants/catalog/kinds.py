"""Bugs of the kinds that random mutants have shown to survive: one or two of each, so that the kind stays noticed."""

from __future__ import annotations

from tests.mutants.catalog.model import AGENT, IT, A, D, Mutant, N, Q

B = "layers/core/tidegate/batches"
I = "layers/core/tidegate/ingest"  # noqa: E741

MUTANTS: tuple[Mutant, ...] = (
    # --- a lease that is not renewed
    Mutant(
        "a slice does not renew its lease",
        f"{B}/slice.py",
        "renew = moment > self.pool.lease_end - lease_seconds * 2 / 3",
        "renew = False",
        (f"{IT}/batches/test_slice_takeover.py",),
    ),
    Mutant(
        "a slice renews its lease and goes by the old one",
        f"{B}/slice.py",
        "            self.pool.lease_end = self._lease_end(moment)",
        "            pass",
        (f"{IT}/batches/test_slice_takeover.py",),
    ),
    Mutant(
        "a download does not renew its host's slot",
        f"{I}/download.py",
        "ingest.clock().timestamp() - renewed_at >= _RENEW_SECONDS",
        "False",
        (f"{IT}/ingest/test_politeness.py",),
    ),
    # --- something claimed before its time by a duplicate message
    Mutant(
        "a callback is claimed before its next attempt is due",
        f"{N}/deliveries.py",
        '"#state = :pending AND #next_attempt_at <= :now"',
        '"#state = :pending AND :now = :now"',
        (f"{IT}/notifications/test_delivery.py",),
    ),
    # --- results kept in memory and forgotten before they were sent
    Mutant(
        "outcomes are forgotten before they are written",
        f"{B}/slice.py",
        "self.b.outcomes.write_part(self.batch, self.runner, part, self.fence, self.outcomes, self.work.items)",
        "written, self.outcomes = self.outcomes, []\n"
        "            self.b.outcomes.write_part(self.batch, self.runner, part, self.fence, written, self.work.items)",
        (f"{IT}/batches/test_slice_carries.py",),
    ),
    Mutant(
        "log lines that could not be written are forgotten",
        f"{B}/workers.py",
        "            self._lines.put_back(unwritten)",
        "            pass",
        (f"{IT}/batches/test_slice_carries.py",),
    ),
    # --- capacity off by one in a group admission
    Mutant(
        "a group is admitted with one slot too few",
        f"{Q}/store.py",
        "most=channel.capacity - count,\n",
        "most=channel.capacity - count + 1,\n",
        (f"{IT}/queue/test_admission_groups.py",),
    ),
    # --- late targets beyond one transaction dropped
    Mutant(
        "late targets beyond one transaction are dropped",
        f"{D}/window.py",
        "for portion in slices(here, _MOVED_TOGETHER):",
        "for portion in [here[:_MOVED_TOGETHER]] if here else []:",
        (f"{IT}/distribution/window/test_window_edges.py",),
    ),
    Mutant(
        "targets submitted after a cancel beyond one transaction are dropped",
        f"{D}/window.py",
        "for portion in slices(_submitted_after_cancel(d, source, late), _MOVED_TOGETHER):",
        "for portion in [_submitted_after_cancel(d, source, late)[:_MOVED_TOGETHER]]:",
        (f"{IT}/distribution/window/test_window_edges.py", f"{IT}/distribution/test_cancel_redrive.py"),
    ),
    Mutant(
        "targets of an expired Job beyond one transaction are dropped",
        f"{D}/window.py",
        "for portion in slices(unserved, _MOVED_TOGETHER):",
        "for portion in [unserved[:_MOVED_TOGETHER]]:",
        (f"{IT}/distribution/window/test_window_edges.py", f"{IT}/distribution/test_recovery.py"),
    ),
    # --- consistency dropped
    *(
        Mutant(
            f"{name} of the table reads an older state although asked not to",
            f"{A}/table.py",
            old,
            new,
            ("tests/unit/aws/test_reads.py",),
        )
        for name, old, new in (
            ("a get", "ConsistentRead=consistent, ", "ConsistentRead=False, "),
            ("a batch", '"Keys": asked, "ConsistentRead": consistent', '"Keys": asked, "ConsistentRead": False'),
            (
                "a current record",
                "self.batch_get(wanted, consistent=True)",
                "self.batch_get(wanted)",
            ),
        )
    ),
    # --- resources that are not released over many deliveries
    Mutant(
        "the lock of a path is kept for ever",
        f"{AGENT}/disk.py",
        "                    del self._users[path], self._locks[path]",
        "                    pass",
        ("tests/unit/client/agent/test_order.py",),
    ),
    Mutant(
        "when a transfer was last listed is kept for ever",
        f"{AGENT}/inbox.py",
        "        self._listed_at.pop(key, None)",
        "        pass",
        ("tests/unit/client/agent/test_long_life.py",),
    ),
    Mutant(
        "transfers that were reported staged are kept for ever",
        f"{AGENT}/inbox.py",
        "        self._staged_reported.discard(key)",
        "        pass",
        ("tests/unit/client/agent/test_long_life.py",),
    ),
)
