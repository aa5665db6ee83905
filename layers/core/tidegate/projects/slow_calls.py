"""Limits how many calls that hold a function for seconds are open in the API's functions at once.

Such a call (a sync export, a sample, a preview, a dry run; a host's poll that waits) takes up to 20 seconds, so without
a limit one project or host could use up the concurrency of the API. Each open call holds a slot as a lease: of the
project's record if it waits for a remote server, of the host's record if it is a poll.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.serialization import Item, Key
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import update
from tidegate.common.ids import Clock
from tidegate.errors import DomainError, RateLimited
from tidegate.projects.store import ProjectStore

logger = Logger(service="tidegate", child=True)

# Longer than a function of the API can run. So the slot of a function that died is free after this time.
LEASE_SECONDS = 35
# A host has one poll open; those of an agent that was restarted end by themselves within seconds.
HOST_POLLS = 5
_RETRY_SECONDS = 5
_KEPT_SECONDS = 86400


class SlowCalls:
    def __init__(self, table: Table, quotas: ProjectStore, clock: Clock) -> None:
        self._table = table
        self._quotas = quotas
        self._clock = clock

    @contextmanager
    def held(self, project_id: str) -> Iterator[None]:
        """Holds a slot while the call runs. RateLimited if all slots of the project's quota `slow_calls` are taken."""
        limit = self._quotas.quotas(project_id).slow_calls
        refusal = (
            f"the project's quota slow_calls is {limit}, and as many calls that wait for a remote server are open: "
            "try again when one of them has ended"
        )
        with self._slot(project_id, keys.slow_calls(project_id), limit, refusal):
            yield

    @contextmanager
    def poll_held(self, project_id: str, agent_id: str) -> Iterator[None]:
        """Holds a slot while a host's poll waits. RateLimited if the host has `HOST_POLLS` such polls open."""
        refusal = f"{HOST_POLLS} polls of this host wait already: try again when one has ended, or poll without wait"
        with self._slot(project_id, keys.waiting_polls(project_id, agent_id), HOST_POLLS, refusal):
            yield

    @contextmanager
    def _slot(self, project_id: str, record: Key, limit: int, refusal: str) -> Iterator[None]:
        owner = uuid4().hex
        slot = self._take(record, owner, limit, refusal)
        try:
            yield
        finally:
            self._release(project_id, record, owner, slot)

    def _take(self, record: Key, owner: str, limit: int, refusal: str) -> int:
        # Chosen at random, so that concurrent calls seldom try the same one.
        free = [random.randrange(limit)]  # noqa: S311
        while free:
            slot = random.choice(free)  # noqa: S311
            try:
                self._try_slot(record, owner, slot)
            except ConditionFailed as error:
                # Each further try follows a call that took the slot meanwhile.
                free = self._free_slots(error.item or {}, limit)
            else:
                return slot
        raise RateLimited(refusal, retry_after=_RETRY_SECONDS)

    def _try_slot(self, record: Key, owner: str, slot: int) -> None:
        now = int(self._clock().timestamp())
        until = now + LEASE_SECONDS
        taken = {f"owner_{slot}": owner, f"until_{slot}": until, "expires_at": until + _KEPT_SECONDS}
        # Its own: boto3 repeats a write whose answer was lost.
        free = f"attribute_not_exists(#until_{slot}) OR #until_{slot} <= :now OR #owner_{slot} = :me"
        self._table.write(update(record, taken, condition=free, now=now, me=owner))

    def _free_slots(self, record: Item, limit: int) -> list[int]:
        now = self._clock().timestamp()
        return [slot for slot in range(limit) if int(record.get(f"until_{slot}", 0)) <= now]

    def _release(self, project_id: str, record: Key, owner: str, slot: int) -> None:
        removes = (f"owner_{slot}", f"until_{slot}")
        # A call that took longer than the lease may have lost the slot to another one.
        mine = update(record, removes=removes, condition=f"#owner_{slot} = :me", me=owner)
        try:
            self._table.try_write(mine)
        except (ClientError, BotoCoreError, DomainError):
            # The caller must get its answer; the slot is free when the lease ends.
            logger.exception("a slot for slow calls could not be released", project_id=project_id)
