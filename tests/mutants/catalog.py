"""Deliberate faults in the product, each a small change of its source, and the tests that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` occurs once in `file` and becomes `new`; one of `tests` must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_D = "layers/core/tidegate/distribution"
_Q = "layers/core/tidegate/queue"
_A = "layers/core/tidegate/aws"
_N = "layers/core/tidegate/notifications"
_RACES = "tests/faults/test_two_writers.py"
_MODES = "tests/faults/test_modes.py"
_IT = "tests/integration"


MUTANTS: tuple[Mutant, ...] = (
    # --- the table
    Mutant(
        "UnprocessedItems dropped",
        f"{_A}/table.py",
        'left = answer.get("UnprocessedItems", {}).get(self.name, [])',
        "left: list[Any] = []",
        (_MODES, _RACES),
    ),
    Mutant(
        "UnprocessedKeys dropped",
        f"{_A}/table.py",
        'left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])',
        "left: list[Any] = []",
        (_RACES,),
    ),
    Mutant(
        "query_all forgets its cursor",
        f"{_A}/table.py",
        "            cursor = page.cursor\n            if cursor is None:\n                return",
        "            return",
        (_MODES,),
    ),
    Mutant(
        "conflicts are not tried again",
        f"{_A}/conflicts.py",
        "            if not _passes(error):\n                raise",
        "            raise",
        ("tests/unit/aws/test_conflicts.py", _MODES),
    ),
    Mutant(
        "messages that SQS did not take are dropped",
        f"{_A}/sqs.py",
        'refused = {entry["Id"] for entry in answer.get("Failed", [])}',
        "refused: set[str] = set()",
        ("tests/faults/test_partial.py",),
    ),
    # --- submit and collect
    Mutant(
        "submit does not bind when the queue fails",
        f"{_D}/submit.py",
        "            self._bind(job.project_id, job.job_id, arrivals)\n",
        "            pass\n",
        (f"{_IT}/distribution/test_submit_hand_over.py",),
    ),
    Mutant(
        "submit leaves Tasks that nobody will deliver",
        f"{_D}/submit.py",
        "            self._tasks.take_back(tasks)\n            raise",
        "            raise",
        (f"{_IT}/distribution/test_submit_hand_over.py",),
    ),
    Mutant(
        "targets bind to a closed Job",
        f"{_D}/store/jobs.py",
        'collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"',
        'collects = ":pending = :pending AND attribute_not_exists(#cancelled_at)"',
        (f"{_IT}/distribution/test_window_edges.py",),
    ),
    Mutant(
        "a late target's Task is read eventually",
        f"{_D}/collect.py",
        "tasks = self._tasks.get_many(source.project_id, uuids, consistent=True)",
        "tasks = self._tasks.get_many(source.project_id, uuids)",
        ("tests/faults/test_stale_reads.py",),
    ),
    Mutant(
        "a moved Task is told of by an eventual read",
        f"{_D}/finish.py",
        "tasks = self._tasks.get_many(job.project_id, some, consistent=True)",
        "tasks = self._tasks.get_many(job.project_id, some)",
        ("tests/faults/test_stale_reads.py",),
    ),
    Mutant(
        "a Task moves from whichever Job it is in",
        f"{_D}/store/tasks.py",
        'return update(keys.task(project_id, uuid), sets, condition="#job_id = :source", source=source.job_id)',
        "return update(keys.task(project_id, uuid), sets)",
        (_RACES,),
    ),
    Mutant(
        "dead letters of expired Jobs are discarded",
        f"{_D}/collect.py",
        "            self._after_expiry(messages)\n",
        "            return\n",
        (f"{_IT}/distribution/test_submit_hand_over.py",),
    ),
    # --- a Job's life
    Mutant(
        "closing runs twice",
        f"{_D}/store/jobs.py",
        'unsharded = "#status = :running AND attribute_not_exists(#shard_count)"',
        'unsharded = "#status = :running"',
        (f"{_IT}/distribution/test_once.py", _RACES),
    ),
    Mutant(
        "the outbox write is left out of a Job's end",
        f"{_D}/store/jobs.py",
        "if not self._transition(job, now, sets, why, notice_write(notice)):",
        "if not self._transition(job, now, sets, why):",
        ("tests/faults/test_told.py",),
    ),
    Mutant(
        "a Job's counts are written whatever was read",
        f"{_D}/store/jobs.py",
        'unchanged = "#status = :running AND #rev = :seen"',
        'unchanged = "#status = :running AND :seen = :seen"',
        (_RACES,),
    ),
    Mutant(
        "a shard is written whatever was read",
        f"{_D}/store/targets.py",
        'condition="#rev = :seen",\n                    seen=shard.rev,',
        'condition="attribute_exists(#pk)",',
        (_RACES,),
    ),
    Mutant(
        "shards change after their Job's end",
        f"{_D}/store/jobs.py",
        'return check(keys.job(job.project_id, job.key), "#status = :running", running=RUNNING)',
        'return check(keys.job(job.project_id, job.key), "attribute_exists(#pk)")',
        (f"{_IT}/distribution/test_once.py",),
    ),
    Mutant(
        "two dispatchers ask again after one refusal",
        f"{_D}/store/transfers.py",
        'same = "#state = :refused AND #attempts = :seen"',
        'same = "attribute_exists(#pk) AND (:refused = :refused AND :seen = :seen)"',
        (_RACES,),
    ),
    Mutant(
        "a step's heartbeat is not renewed",
        f"{_D}/recovery.py",
        "        if (job.due_at or 0) - now.timestamp() < _RENEW_BEFORE:\n",
        "        if False:\n",
        (f"{_IT}/distribution/test_recovery.py",),
    ),
    Mutant(
        "a late recovery sets the generation back",
        f"{_D}/store/jobs.py",
        'same = "#generation = :seen"',
        'same = "attribute_exists(#pk) AND :seen = :seen"',
        (_RACES,),
    ),
    Mutant(
        "callbacks are forgotten before the topic has them",
        f"{_D}/finish.py",
        "                if len(self._topic.publish(notices)) < len(notices):\n                    return MORE\n",
        "                self._topic.publish(notices)\n",
        ("tests/faults/test_partial.py",),
    ),
    Mutant(
        "a refused portion ends the whole Job",
        f"{_D}/dispatch.py",
        "if len(rejected) == len(job.portions):",
        "if rejected:",
        (f"{_IT}/distribution/test_gse.py",),
    ),
    Mutant(
        "a failed upload keeps its staging",
        f"{_D}/engines/gse.py",
        "self._inbox.forget_staging(entry, staged_before=transfer.asked_at + _STAGED_SECONDS)",
        "pass",
        (f"{_IT}/distribution/test_gse.py",),
    ),
    Mutant(
        "an inbox is read to its first page",
        f"{_D}/store/agent_inbox.py",
        'map(_entry, self._table.query_all(keys.inbox(project_id, agent_id), index="gsi1"))',
        'map(_entry, self._table.query(keys.inbox(project_id, agent_id), index="gsi1").items)',
        (f"{_IT}/distribution/fleet/test_long_inbox.py",),
    ),
    # --- the queue
    Mutant(
        "a request moves from any version",
        f"{_Q}/store.py",
        'put(item, "#version = :seen AND #status = :was", seen=old.version, was=old.status)',
        'put(item, "#status = :was", was=old.status)',
        (_RACES,),
    ),
    Mutant(
        "an expired request is removed although it changed",
        f"{_Q}/retention/store.py",
        'return self._table.try_write(delete(key, "#version = :seen", seen=request.version))',
        "return self._table.try_write(delete(key))",
        (_RACES,),
    ),
    Mutant(
        "an expired request's archive overwrites a newer version",
        f"{_Q}/retention/store.py",
        'removes=removes, condition="#version = :seen", seen=request.version)',
        'removes=removes, condition="attribute_exists(#pk)")',
        (_RACES,),
    ),
    Mutant(
        "capacity is off by one",
        f"{_Q}/locks.py",
        'has_room = "#running <= #capacity" if extra else "#running < #capacity"',
        'has_room = "#running <= #capacity"',
        (_RACES,),
    ),
    Mutant(
        "a slot is given back by any attempt",
        f"{_Q}/locks.py",
        'slot = delete(keys.slot(request.channel, request.request_id), "#attempt = :attempt", attempt=request.attempt)',
        "slot = delete(keys.slot(request.channel, request.request_id))",
        (_RACES,),
    ),
    Mutant(
        "a mutex is taken while its lease lasts",
        f"{_Q}/locks.py",
        'condition="attribute_not_exists(#owner) OR #lease_until <= :now"',
        'condition="attribute_not_exists(#owner) OR :now = :now"',
        (f"{_IT}/queue/test_admission.py",),
    ),
    Mutant(
        "heartbeats do not renew the mutex",
        f"{_Q}/locks.py",
        '{"lease_until": now + LEASE_SECONDS},\n        condition="#owner = :me AND #attempt',
        '{"renewed": 1},\n        condition="#owner = :me AND #attempt',
        (f"{_IT}/queue/test_admission.py",),
    ),
    Mutant(
        "an old attempt may send heartbeats",
        f"{_Q}/store.py",
        'condition = "#status = :running AND #attempt = :attempt"',
        'condition = "#status = :running AND :attempt = :attempt"',
        (_RACES,),
    ),
    # --- batches, callbacks, projects
    Mutant(
        "the fencing token is lost",
        "layers/core/tidegate/batches/run/store.py",
        'if attributes[name] is None],\n            condition="#fence = :fence",',
        'if attributes[name] is None],\n            condition=":fence = :fence",',
        (_RACES,),
    ),
    Mutant(
        "a batch is taken over while its lease lasts",
        "layers/core/tidegate/batches/run/store.py",
        'condition="attribute_exists(#pk) AND #lease_until < :now"',
        'condition="attribute_exists(#pk) AND :now = :now"',
        (_RACES,),
    ),
    Mutant(
        "a callback is settled after its lease passed on",
        f"{_N}/delivery_store.py",
        'condition="#lease_until = :lease"',
        'condition="attribute_exists(#pk) AND :lease = :lease"',
        (_RACES,),
    ),
    Mutant(
        "a project's revision is not compared",
        "layers/core/tidegate/projects/store.py",
        'condition="attribute_exists(#pk) AND (attribute_not_exists(#revision) OR #revision = :was)"',
        'condition="attribute_exists(#pk) AND :was = :was"',
        (_RACES,),
    ),
    Mutant(
        "notices that the topic did not take leave the outbox",
        f"{_N}/topic.py",
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
        (f"{_IT}/distribution/test_large_idempotent_answer.py",),
    ),
    # --- waves, cancelling, enrolment
    Mutant(
        "targets bind to a cancelled Job",
        f"{_D}/store/jobs.py",
        'collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"',
        'collects = "#status = :pending"',
        (f"{_IT}/distribution/test_cancel_redrive.py", _RACES),
    ),
    Mutant(
        "two polls begin two waves",
        f"{_D}/store/jobs.py",
        'here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"',
        'here = "#status = :running AND :wave = :wave AND attribute_not_exists(#cancelled_at)"',
        (_RACES,),
    ),
    Mutant(
        "a cancelled Job begins its next wave",
        f"{_D}/store/jobs.py",
        'here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"',
        'here = "#status = :running AND #wave = :wave"',
        (_RACES,),
    ),
    Mutant(
        "an enrolment is used once too often",
        f"{_D}/store/enrolments.py",
        'condition="#used < #uses"',
        'condition="#used <= #uses"',
        (f"{_IT}/distribution/fleet/test_enrolment.py",),
    ),
    # --- uploads in parts
    Mutant(
        "an upload of another size than announced is taken",
        "layers/core/tidegate/files/verify.py",
        "if file.size is not None and file.size != size:",
        "if False:",
        ("tests/unit/files/test_verify.py",),
    ),
    Mutant(
        "a range that S3 cut short is hashed",
        "layers/core/tidegate/files/verify.py",
        "if len(got) == last - start + 1:",
        "if got:",
        (f"{_IT}/files/test_multipart.py", "tests/unit/files"),
    ),
    # --- exports by ranges
    Mutant(
        "a range that another worker went on with is not found",
        "layers/core/tidegate/exports/join.py",
        "record = kept.get((table, page)) or context.record(table, page)",
        "record = kept.get((table, page))",
        (f"{_IT}/exports/test_ranges.py",),
    ),
    Mutant(
        "a killed attempt's upload stays",
        "layers/core/tidegate/exports/join.py",
        "self._objects.abort_uploads(output_prefix(*here))",
        "pass",
        (f"{_IT}/exports/test_ranges.py",),
    ),
    # --- outcomes of a batch's items
    Mutant(
        "outcomes that no progress counts are shown",
        "layers/core/tidegate/batches/outcomes.py",
        "for part in sorted(chosen) if part <= count]",
        "for part in sorted(chosen)]",
        ("tests/unit/batches", "tests/workflow/test_batch_outcomes.py"),
    ),
    Mutant(
        "of two writers of a part of outcomes the fenced one counts",
        "layers/core/tidegate/batches/outcomes.py",
        'chosen[int(key.removeprefix(prefix).partition("-")[0])] = key',
        'chosen.setdefault(int(key.removeprefix(prefix).partition("-")[0]), key)',
        ("tests/unit/batches", "tests/workflow/test_batch_outcomes.py"),
    ),
    # --- fair admission, requests that exist once
    Mutant(
        "a project's fixed share is not kept",
        f"{_Q}/admission/fairness.py",
        "return capacity if fixed_share is None else min(fixed_share, capacity)",
        "return capacity",
        ("tests/unit/queue/test_fairness.py", f"{_IT}/queue/test_fair_admission.py"),
    ),
    Mutant(
        "a project that only runs has no share",
        f"{_Q}/admission/fairness.py",
        "return self.waiting > 0 or self.running > 0",
        "return self.waiting > 0",
        ("tests/unit/queue/test_fairness.py", f"{_IT}/queue/test_fair_admission.py"),
    ),
    Mutant(
        "two callers with one dedupe key both submit",
        f"{_Q}/unique.py",
        'write = put(item, "attribute_not_exists(#pk)")',
        "write = put(item)",
        (_RACES,),
    ),
    Mutant(
        "two callers replace what had a dedupe key",
        f"{_Q}/unique.py",
        'write = put(item, "#request_id = :held", held=held["request_id"])',
        "write = put(item)",
        (_RACES,),
    ),
)
