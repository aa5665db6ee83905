"""Bugs in the queue and in compensation."""

from __future__ import annotations

from tests.mutants.catalog.model import IT, RACES, C, Mutant, Q

MUTANTS: tuple[Mutant, ...] = (
    # --- the queue
    Mutant(
        "a request moves from any version",
        f"{Q}/store.py",
        'put(item, "#version = :seen AND #status = :was", seen=old.version, was=old.status)',
        'put(item, "#status = :was", was=old.status)',
        (RACES,),
    ),
    Mutant(
        "an expired request is removed although it changed",
        f"{Q}/retention.py",
        'return self._table.try_write(delete(key, "#version = :seen", seen=request.version))',
        "return self._table.try_write(delete(key))",
        (RACES,),
    ),
    Mutant(
        "an expired request's archive overwrites a newer version",
        f"{Q}/retention.py",
        'removes=removes, condition="#version = :seen", seen=request.version)',
        'removes=removes, condition="attribute_exists(#pk)")',
        (RACES,),
    ),
    Mutant(
        "capacity is off by one",
        f"{Q}/store.py",
        'has_room = "#running <= #capacity" if turn is not None and turn.extra else "#running < #capacity"',
        'has_room = "#running <= #capacity"',
        (RACES,),
    ),
    Mutant(
        "a slot is given back by any attempt",
        f"{Q}/store.py",
        'slot = delete(keys.slot(request.channel, request.request_id), "#attempt = :attempt", attempt=request.attempt)',
        "slot = delete(keys.slot(request.channel, request.request_id))",
        (RACES,),
    ),
    Mutant(
        "a mutex is taken while its lease lasts",
        f"{Q}/store.py",
        'condition="attribute_not_exists(#owner) OR #lease_until <= :now"',
        'condition="attribute_not_exists(#owner) OR :now = :now"',
        (f"{IT}/queue/test_admission.py",),
    ),
    Mutant(
        "heartbeats do not renew the mutex",
        f"{Q}/store.py",
        '{"lease_until": now + LEASE_SECONDS},\n        condition="#owner = :me AND #attempt',
        '{"renewed": 1},\n        condition="#owner = :me AND #attempt',
        (f"{IT}/queue/test_admission.py",),
    ),
    Mutant(
        "an old attempt may send heartbeats",
        f"{Q}/store.py",
        'condition = "#status = :running AND #attempt = :attempt"',
        'condition = "#status = :running AND :attempt = :attempt"',
        (RACES,),
    ),
    # --- fair admission, requests that exist once
    Mutant(
        "a project's fixed share is not kept",
        f"{Q}/model.py",
        "return capacity if fixed_share is None else min(fixed_share, capacity)",
        "return capacity",
        ("tests/unit/queue/test_fairness.py", f"{IT}/queue/test_fair_admission.py"),
    ),
    Mutant(
        "a project that only runs has no share",
        f"{Q}/model.py",
        "return self.waiting > 0 or self.running > 0",
        "return self.waiting > 0",
        ("tests/unit/queue/test_fairness.py", f"{IT}/queue/test_fair_admission.py"),
    ),
    Mutant(
        "two callers with one dedupe key both submit",
        f"{Q}/queue.py",
        "if held else put_new(item)",
        "if held else put(item)",
        (RACES,),
    ),
    Mutant(
        "two callers replace what had a dedupe key",
        f"{Q}/queue.py",
        'write = put(item, "#request_id = :held", held=held["request_id"])',
        "write = put(item)",
        (RACES,),
    ),
    # --- the index of due work, and the poll
    Mutant(
        "the poll reads no other shard than the first",
        f"{C}/poll.py",
        "        for entry in entries:\n",
        "        for entry in entries[:0]:\n",
        (f"{IT}/compensation/test_due_shards.py",),
    ),
    Mutant(
        "a shard is taken off the list although it was opened again",
        f"{C}/poll.py",
        'delete(_key(entry), same, seen=entry["opened_at"])',
        "delete(_key(entry))",
        (f"{IT}/compensation/test_due_shards.py",),
    ),
    Mutant(
        "a shard that looks empty is taken off the list at once",
        f"{C}/poll.py",
        'int(entry["opened_at"]) + SHARD_KEPT_SECONDS < now',
        'int(entry["opened_at"]) < now',
        (f"{IT}/compensation/test_due_shards.py",),
    ),
    Mutant(
        "the poll reads one page of a shard",
        f"{C}/poll.py",
        "            if cursor is None:\n                return _Shard(found, entries)\n",
        "            return _Shard(found, entries)\n",
        (f"{IT}/compensation/test_due_shards.py",),
    ),
    Mutant(
        "two polls start the same work",
        f"{C}/poll.py",
        'update(_key(item), sets, condition="#due_at = :seen", seen=item["due_at"])',
        "update(_key(item), sets)",
        (f"{IT}/compensation/test_starts.py",),
    ),
    # --- admission
    Mutant(
        "a run of admission goes on until it is killed",
        f"{Q}/admission.py",
        "in_time = not turns.admitted or queue.monotonic() < ends_at",
        "in_time = True",
        (f"{IT}/queue/test_long_lanes.py",),
    ),
    Mutant(
        "requests behind one mutex are tried one by one",
        f"{Q}/admission.py",
        "if unknown and len(locking) > 1:",
        "if False:",
        (f"{IT}/queue/test_long_lanes.py",),
    ),
    Mutant(
        "blocked requests of one project use up the time of admission",
        f"{Q}/admission.py",
        "        if queue.monotonic() >= ends_at:\n",
        "        if False:\n",
        (f"{IT}/queue/test_long_lanes.py",),
    ),
    Mutant(
        "a mutex whose lease ran out holds others back",
        f"{Q}/store.py",
        'if "owner" in item and float(item["lease_until"]) > now}',
        'if "owner" in item}',
        (f"{IT}/queue/test_long_lanes.py",),
    ),
    Mutant(
        "long work sends no heartbeats",
        f"{Q}/queue.py",
        "if now - self._last_heartbeat < self._timing.beat:",
        "if True:",
        ("tests/unit/queue/test_attempt.py",),
    ),
)
