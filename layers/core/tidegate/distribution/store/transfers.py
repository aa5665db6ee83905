"""Transfers in the table. Each is stored before it is requested from the provider."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import put_new, update
from tidegate.distribution.model import OUTAGE_SECONDS, Job
from tidegate.distribution.transfers import INTENDED, REFUSED, Transfer

_FIELDS = tuple(field.name for field in fields(Transfer))


def _transfer(item: dict[str, Any]) -> Transfer:
    return Transfer(**{name: item[name] for name in _FIELDS if name in item})


class TransferStore:
    def __init__(self, table: Table, *, lasts: int) -> None:
        self._table = table
        self._lasts = lasts

    def list(self, job: Job) -> list[Transfer]:
        found = self._table.query_all(keys.transfers(job.project_id, job.key), consistent=True)
        return [_transfer(item) for item in found]

    def intend(self, job: Job, transfer: Transfer) -> tuple[Transfer, bool]:
        """Stores the intent if there is none. Returns the stored transfer, and whether this call may request it."""
        key = keys.transfer(job.project_id, job.key, transfer.number)
        extra = job.spec.extra_seconds(self._lasts, transfer.asked_at)
        expires_at = int(transfer.asked_at) + self._lasts + extra + OUTAGE_SECONDS
        item = key | asdict(transfer) | {"expires_at": expires_at}
        try:
            self._table.write(put_new(item))
        except ConditionFailed as met:
            return (_transfer(met.item) if met.item else transfer), False
        return transfer, True

    def ask_again(self, job: Job, transfer: Transfer, now: float) -> bool:
        """Refused → intended. Returns True to only one of several callers, which may then request it."""
        sets = {"state": INTENDED, "asked_at": now, "attempts": transfer.attempts + 1}
        same = "#state = :refused AND #attempts = :seen"
        key = keys.transfer(job.project_id, job.key, transfer.number)
        return self._table.try_write(update(key, sets, condition=same, refused=REFUSED, seen=transfer.attempts))

    def settle(self, job: Job, transfer: Transfer, state: str, **more: str | int | None) -> None:
        """Intended → `state`, with further fields. The first writer wins."""
        key = keys.transfer(job.project_id, job.key, transfer.number)
        changed = update(key, {"state": state, **more}, condition="#state = :intended", intended=INTENDED)
        self._table.try_write(changed)
