"""Bugs in the table, batches, callbacks, files, exports and the agent."""

from __future__ import annotations

from tests.mutants.catalog.model import AGENT, IT, MODES, RACES, A, Mutant, N

_RESULTS = "tests/integration/batches/test_item_results.py"
_IDENTITY = "tests/integration/queue/test_store_identity.py"

MUTANTS: tuple[Mutant, ...] = (
    # --- the table
    Mutant(
        "UnprocessedItems dropped",
        f"{A}/table.py",
        'left = answer.get("UnprocessedItems", {}).get(self.name, [])',
        "left: list[Any] = []",
        (MODES, RACES),
    ),
    Mutant(
        "UnprocessedKeys dropped",
        f"{A}/table.py",
        'left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])',
        "left: list[Any] = []",
        (RACES,),
    ),
    Mutant(
        "query_all forgets its cursor",
        f"{A}/table.py",
        "            cursor = page.cursor\n            if cursor is None:\n                return",
        "            return",
        (MODES,),
    ),
    Mutant(
        "conflicts are not tried again",
        f"{A}/table.py",
        "            if not _is_temporary(error):\n                raise",
        "            raise",
        ("tests/unit/aws/test_conflicts.py", MODES),
    ),
    Mutant(
        "messages that SQS did not take are dropped",
        f"{A}/clients.py",
        'refused = {entry["Id"] for entry in answer.get("Failed", [])}',
        "refused: set[str] = set()",
        ("tests/faults/test_partial.py",),
    ),
    # --- batches, callbacks, projects
    Mutant(
        "the fencing token is lost",
        "layers/core/tidegate/batches/store.py",
        'if attributes[name] is None],\n            condition="#fence = :fence",',
        'if attributes[name] is None],\n            condition=":fence = :fence",',
        (RACES,),
    ),
    Mutant(
        "a batch is taken over while its lease lasts",
        "layers/core/tidegate/batches/store.py",
        'condition="attribute_exists(#pk) AND #lease_until < :now"',
        'condition="attribute_exists(#pk) AND :now = :now"',
        (RACES,),
    ),
    Mutant(
        "a time-out overrules a stored result",
        "layers/core/tidegate/batches/items.py",
        '_UNDECIDED = "attribute_not_exists(#pk) OR #open = :yes"',
        '_UNDECIDED = ":yes = :yes"',
        (_RESULTS,),
    ),
    Mutant(
        "results that came between two slices are read after the first calls",
        "layers/core/tidegate/batches/slice.py",
        "        self._settle()\n        if self._is_time_up:\n",
        "        if self._is_time_up:\n",
        (_RESULTS,),
    ),
    Mutant(
        "the clean-up trusts any table",
        "layers/core/tidegate/queue/retention.py",
        "    if table and table == bucket:\n",
        "    if table or bucket:\n",
        (_IDENTITY,),
    ),
    Mutant(
        "the clean-up deletes any number of objects",
        "layers/core/tidegate/queue/retention.py",
        "    return losses > confirmed + MOST_ORPHANS and",
        "    return losses < 0 and",
        (_IDENTITY,),
    ),
    Mutant(
        "a callback is settled after its lease passed on",
        f"{N}/deliveries.py",
        'condition="#lease_until = :lease"',
        'condition="attribute_exists(#pk) AND :lease = :lease"',
        (RACES,),
    ),
    Mutant(
        "a project's revision is not compared",
        "layers/core/tidegate/projects/projects.py",
        'condition="attribute_exists(#pk) AND (attribute_not_exists(#revision) OR #revision = :was)"',
        'condition="attribute_exists(#pk) AND :was = :was"',
        (RACES,),
    ),
    Mutant(
        "notices that the topic did not take leave the outbox",
        f"{N}/notices.py",
        'taken += [batch[int(entry["Id"])][0] for entry in answer.get("Successful", [])]',
        "taken += [notice for notice, _ in batch]",
        ("tests/faults/test_partial.py",),
    ),
    # --- idempotency
    Mutant(
        "a large answer is kept in one item",
        "layers/core/tidegate/web/idempotency.py",
        "if body is not None and len(body) > _LONGEST_BODY:",
        "if False:",
        (f"{IT}/distribution/test_large_idempotent_answer.py",),
    ),
    Mutant(
        "a slow run creates its record although another run has the key",
        "layers/core/tidegate/aws/table.py",
        'mine = "#run = :mine AND attribute_not_exists(#made)"',
        'mine = "attribute_exists(#run) OR #run = :mine"',
        (f"{IT}/web/test_repeat_after_kill.py",),
    ),
    # --- uploads in parts
    Mutant(
        "an upload of another size than announced is taken",
        "layers/core/tidegate/files/reading.py",
        "if file.size is not None and file.size != size:",
        "if False:",
        ("tests/unit/files/test_verify.py",),
    ),
    Mutant(
        "a range that S3 cut short is hashed",
        "layers/core/tidegate/files/reading.py",
        "if len(got) == last - start + 1:",
        "if got:",
        (f"{IT}/files/test_multipart.py", "tests/unit/files"),
    ),
    Mutant(
        "the digests of a replaced object are continued with the new one",
        "layers/core/tidegate/files/reading.py",
        "if digests.found != found:",
        "if False:",
        ("tests/unit/files/test_reading.py",),
    ),
    Mutant(
        "a turn without time for another piece begins it",
        "layers/core/tidegate/files/reading.py",
        "seconds_to_read(piece_size(found.size) if pieces else 0)",
        "0",
        ("tests/unit/files/test_reading.py",),
    ),
    # --- exports by ranges
    Mutant(
        "a range that another worker went on with is not found",
        "layers/core/tidegate/exports/ranges.py",
        "record = by_first.get((table, page)) or context.record(table, page)",
        "record = by_first.get((table, page))",
        (f"{IT}/exports/ranges/test_crashes.py",),
    ),
    Mutant(
        "a killed attempt's upload stays",
        "layers/core/tidegate/exports/ranges.py",
        "threads.submit(objects.abort_uploads, output_prefix(*ids))",
        "threads.submit(int)",
        (f"{IT}/exports/ranges/test_crashes.py",),
    ),
    # --- outcomes of a batch's items
    Mutant(
        "outcomes that no progress counts are shown",
        "layers/core/tidegate/batches/items.py",
        "_number(one[0]) <= high, listed)",
        "_number(one[0]) <= high + 9, listed)",
        ("tests/unit/batches", "tests/workflow/test_batch_outcomes.py"),
    ),
    Mutant(
        "of two writers of a part of outcomes the fenced one counts",
        "layers/core/tidegate/batches/items.py",
        "one in takewhile(lambda one: _number(one[0]) <= high, listed)}",
        "one in reversed(list(takewhile(lambda one: _number(one[0]) <= high, listed)))}",
        ("tests/unit/batches", "tests/workflow/test_batch_outcomes.py"),
    ),
    # --- callbacks
    Mutant(
        "a watch is removed although the end did not reach its client",
        f"{N}/websocket.py",
        "if is_done and watch.connection_id not in failed]",
        "if is_done]",
        (f"{IT}/notifications/test_sockets.py",),
    ),
    Mutant(
        "a callback that was never tried is given up",
        f"{N}/callbacks.py",
        "delivery.gives_up_at and not delivery.tries:",
        "delivery.gives_up_at and False:",
        (f"{IT}/notifications/test_receiver_limits.py",),
    ),
    Mutant(
        "a failing receiver gets as many at once as before",
        f"{N}/deliveries.py",
        "return max(1, limit // 2)",
        "return limit",
        (f"{IT}/notifications/test_receiver_limits.py",),
    ),
    Mutant(
        "a project's silent receivers have no limit together",
        f"{N}/deliveries.py",
        "project if project and project.is_slow(now) else None",
        "None",
        (f"{IT}/notifications/test_slow_projects.py",),
    ),
    Mutant(
        "an announced upload does not count",
        "layers/core/tidegate/projects/limits.py",
        '"open_uploads": 1, "announced_bytes": size}',
        '"open_uploads": 1, "announced_bytes": 0}',
        (f"{IT}/files/test_upload_quota.py",),
    ),
    Mutant(
        "the room for an upload is not checked when it is announced",
        "layers/core/tidegate/projects/limits.py",
        "fits += f\" AND ({below('announced_bytes', 'end', allows_none=True)})\"",
        'fits += " AND :end = :end"',
        (f"{IT}/files/test_upload_quota.py",),
    ),
    Mutant(
        "a host that is connecting is taken as gone",
        "layers/core/tidegate/distribution/fleet.py",
        "if not connected[connection_id].may_be_opening(now):",
        "if True:",
        (f"{IT}/distribution/fleet/test_push.py",),
    ),
    Mutant(
        "an archive is unpacked without a budget",
        "layers/core/tidegate/ingest/archives.py",
        "        self._budget.spend(len(found))\n",
        "",
        ("tests/unit/ingest/test_archives.py",),
    ),
    Mutant(
        "callbacks that wait for a receiver come back every second",
        f"{N}/deliveries.py",
        "max(now, state.open_until), latest, step)\n        if at is None:\n"
        "            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)\n        return max(1.0, at - now)\n",
        "max(now, state.open_until), latest, step)\n        if at is None:\n"
        "            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)\n        return 1.0\n",
        (f"{IT}/notifications/test_receiver_limits.py", "tests/unit/notifications/test_receiver_pace.py"),
    ),
    Mutant(
        "callbacks beyond the longest wait come back all at once",
        f"{N}/deliveries.py",
        "max(now, state.open_until), latest, step)\n        if at is None:\n"
        "            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)",
        "max(now, state.open_until), latest, step)\n        if at is None:\n            return LONGEST_PUT_OFF_SECONDS",
        ("tests/unit/notifications/test_receiver_pace.py",),
    ),
    # --- the agent's system calls
    Mutant(
        "the agent renames a file whose bytes may not be on the disk",
        f"{AGENT}/disk.py",
        "        os.fchmod(file.fileno(), self._mode(mode))\n        os.fsync(file.fileno())\n",
        "        os.fchmod(file.fileno(), self._mode(mode))\n",
        ("tests/unit/client/agent/test_crash.py",),
    ),
    Mutant(
        "the agent acknowledges a result that it has not reported",
        f"{AGENT}/inbox.py",
        "            self._send(results)\n            self._inbox.mark_accepted(results)\n"
        "            self._journal.acknowledge(key_of(result) for result in results)",
        "            self._journal.acknowledge(key_of(result) for result in results)\n            self._send(results)\n"
        "            self._inbox.mark_accepted(results)",
        ("tests/unit/client/agent/test_crash.py",),
    ),
)
