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
        "                self._bind(job.project_id, job.job_id, arrivals)\n",
        "                pass\n",
        (f"{_IT}/distribution/test_submit_hand_over.py",),
    ),
    Mutant(
        "submit leaves Tasks that nobody will deliver",
        f"{_D}/submit.py",
        "                self._tasks.take_back(tasks)\n                raise",
        "                raise",
        (f"{_IT}/distribution/test_submit_hand_over.py",),
    ),
    Mutant(
        "targets bind to a closed Job",
        f"{_D}/store/jobs.py",
        'return check(keys.job(project_id, job_key), "#status = :pending", pending=PENDING)',
        'return check(keys.job(project_id, job_key), "attribute_exists(#pk)")',
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
        'map(_order, self._table.query_all(keys.inbox(project_id, agent_id), index="gsi1"))',
        'map(_order, self._table.query(keys.inbox(project_id, agent_id), index="gsi1").items)',
        (f"{_IT}/distribution/test_long_inbox.py",),
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
        f"{_Q}/retention_store.py",
        'return self._done(delete(key, "#version = :seen", seen=request.version))',
        "return self._done(delete(key))",
        (_RACES,),
    ),
    Mutant(
        "an expired request's archive overwrites a newer version",
        f"{_Q}/retention_store.py",
        'condition="#version = :seen", seen=request.version))',
        'condition="attribute_exists(#pk)"))',
        (_RACES,),
    ),
    Mutant(
        "capacity is off by one",
        f"{_Q}/locks.py",
        'condition="#running < #capacity AND #paused = :no"',
        'condition="#running <= #capacity AND #paused = :no"',
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
        'removes=() if progress.verdict else ("verdict",),\n            condition="#fence = :fence",',
        'removes=() if progress.verdict else ("verdict",),\n            condition=":fence = :fence",',
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
)
