"""Faults in what distributes files."""

from __future__ import annotations

from tests.mutants.catalog.model import IT, RACES, D, Mutant

MUTANTS: tuple[Mutant, ...] = (
    # --- submit and collect
    Mutant(
        "submit does not bind when the queue fails",
        f"{D}/submit.py",
        "            self._bind(job.project_id, job.job_id, arrivals)\n",
        "            pass\n",
        (f"{IT}/distribution/window/test_submit_hand_over.py",),
    ),
    Mutant(
        "submit leaves Tasks that nobody will deliver",
        f"{D}/submit.py",
        "            self._tasks.take_back(tasks)\n            raise",
        "            raise",
        (f"{IT}/distribution/window/test_submit_hand_over.py",),
    ),
    Mutant(
        "targets bind to a closed Job",
        f"{D}/store/jobs.py",
        'collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"',
        'collects = ":pending = :pending AND attribute_not_exists(#cancelled_at)"',
        (f"{IT}/distribution/window/test_window_edges.py",),
    ),
    Mutant(
        "a late target's Task is read eventually",
        f"{D}/window/collect.py",
        "tasks = self._tasks.get_many(source.project_id, uuids, consistent=True)",
        "tasks = self._tasks.get_many(source.project_id, uuids)",
        ("tests/faults/test_stale_reads.py",),
    ),
    Mutant(
        "a moved Task is told of by an eventual read",
        f"{D}/finish.py",
        "tasks = self._tasks.get_many(job.project_id, some, consistent=True)",
        "tasks = self._tasks.get_many(job.project_id, some)",
        ("tests/faults/test_stale_reads.py",),
    ),
    Mutant(
        "a Task moves from whichever Job it is in",
        f"{D}/store/tasks.py",
        'return update(keys.task(project_id, uuid), sets, condition="#job_id = :source", source=source.job_id)',
        "return update(keys.task(project_id, uuid), sets)",
        (RACES,),
    ),
    Mutant(
        "dead letters of expired Jobs are discarded",
        f"{D}/window/collect.py",
        "            self._after_expiry(messages)\n",
        "            return\n",
        (f"{IT}/distribution/window/test_submit_hand_over.py",),
    ),
    # --- a Job's life
    Mutant(
        "closing runs twice",
        f"{D}/store/jobs.py",
        'unsharded = "#status = :running AND attribute_not_exists(#shard_count)"',
        'unsharded = "#status = :running"',
        (f"{IT}/distribution/test_once.py", RACES),
    ),
    Mutant(
        "the outbox write is left out of a Job's end",
        f"{D}/store/jobs.py",
        "if not self._transition(job, now, sets, why, notice_write(notice)):",
        "if not self._transition(job, now, sets, why):",
        ("tests/faults/test_told.py",),
    ),
    Mutant(
        "a Job's counts are written whatever was read",
        f"{D}/store/jobs.py",
        'unchanged = "#status = :running AND #rev = :seen"',
        'unchanged = "#status = :running AND :seen = :seen"',
        (RACES,),
    ),
    Mutant(
        "a shard is written whatever was read",
        f"{D}/store/targets.py",
        'condition="#rev = :seen",\n                    seen=shard.rev,',
        'condition="attribute_exists(#pk)",',
        (RACES,),
    ),
    Mutant(
        "shards change after their Job's end",
        f"{D}/store/jobs.py",
        'return check(keys.job(job.project_id, job.key), "#status = :running", running=RUNNING)',
        'return check(keys.job(job.project_id, job.key), "attribute_exists(#pk)")',
        (f"{IT}/distribution/test_once.py",),
    ),
    Mutant(
        "two dispatchers ask again after one refusal",
        f"{D}/store/transfers.py",
        'same = "#state = :refused AND #attempts = :seen"',
        'same = "attribute_exists(#pk) AND (:refused = :refused AND :seen = :seen)"',
        (RACES,),
    ),
    Mutant(
        "a step's heartbeat is not renewed",
        f"{D}/recovery.py",
        "        if (job.due_at or 0) - now.timestamp() < _RENEW_BEFORE + ahead:\n",
        "        if False:\n",
        (f"{IT}/distribution/test_recovery.py",),
    ),
    Mutant(
        "a late recovery sets the generation back",
        f"{D}/store/jobs.py",
        'same = "#generation = :seen"',
        'same = "attribute_exists(#pk) AND :seen = :seen"',
        (RACES,),
    ),
    Mutant(
        "callbacks are forgotten before the topic has them",
        f"{D}/finish.py",
        "                if len(self._topic.publish(notices)) < len(notices):\n                    return MORE\n",
        "                self._topic.publish(notices)\n",
        ("tests/faults/test_partial.py",),
    ),
    Mutant(
        "a refused portion ends the whole Job",
        f"{D}/dispatch.py",
        "if len(rejected) == len(job.portions):",
        "if rejected:",
        (f"{IT}/distribution/test_gse.py",),
    ),
    Mutant(
        "a failed upload keeps its staging",
        f"{D}/engines/gse.py",
        "self._inbox.forget_staging(entry, staged_before=transfer.asked_at + _STAGED_SECONDS)",
        "pass",
        (f"{IT}/distribution/test_gse.py",),
    ),
    Mutant(
        "an inbox is read to its first page",
        f"{D}/store/agent_inbox.py",
        'map(_entry, self._table.query_all(keys.inbox(project_id, agent_id), index="gsi1"))',
        'map(_entry, self._table.query(keys.inbox(project_id, agent_id), index="gsi1").items)',
        (f"{IT}/distribution/fleet/test_long_inbox.py",),
    ),
    # --- waves, cancelling, enrolment
    Mutant(
        "targets bind to a cancelled Job",
        f"{D}/store/jobs.py",
        'collects = "#status = :pending AND attribute_not_exists(#cancelled_at)"',
        'collects = "#status = :pending"',
        (f"{IT}/distribution/test_cancel_redrive.py", RACES),
    ),
    Mutant(
        "two polls begin two waves",
        f"{D}/store/jobs.py",
        'here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"',
        'here = "#status = :running AND :wave = :wave AND attribute_not_exists(#cancelled_at)"',
        (RACES,),
    ),
    Mutant(
        "a cancelled Job begins its next wave",
        f"{D}/store/jobs.py",
        'here = "#status = :running AND #wave = :wave AND attribute_not_exists(#cancelled_at)"',
        'here = "#status = :running AND #wave = :wave"',
        (RACES,),
    ),
    Mutant(
        "an enrolment is used once too often",
        f"{D}/store/enrolments.py",
        'condition="#used < #uses"',
        'condition="#used <= #uses"',
        (f"{IT}/distribution/fleet/test_enrolment.py",),
    ),
)
