"""The locks of a running request: a slot of its channel and, within a subscription, a mutex with a lease."""

from __future__ import annotations

from tidegate.aws import keys
from tidegate.aws.writes import Write, delete, put_new, update
from tidegate.queue.channels.model import Channel
from tidegate.queue.model import RUNNING, Request
from tidegate.queue.transaction import CHANNEL, MUTEX, SLOT

# Heartbeats renew the lease, so the mutex of a dead owner becomes free; at most for two hours in total.
LEASE_SECONDS = 180
LONGEST_LEASE_SECONDS = 7200


def slot_writes(old: Request, new: Request, now: float, *, extra: bool = False) -> list[tuple[str, Write]]:
    """A move's writes to the channel, the slot and the mutex. `extra` allows one slot beyond the capacity."""
    if old.status != RUNNING and new.status == RUNNING:
        return _taken(new, now, extra)
    if old.status == RUNNING and new.status != RUNNING:
        return _given_back(old)
    return []


def _taken(request: Request, now: float, extra: bool) -> list[tuple[str, Write]]:
    # The slot beyond the capacity is not marked: when any slot is released, `running` is at the capacity again.
    has_room = "#running <= #capacity" if extra else "#running < #capacity"
    channel = update(
        keys.channel(request.channel),
        adds={"running": 1, "slot_changes": 1},
        condition=f"{has_room} AND #paused = :no",
        no=False,
    )
    parts = [(CHANNEL, channel), (SLOT, slot_taken(request))]
    return [*parts, (MUTEX, _locked(request, now))] if request.subscription_id else parts


def slot_taken(request: Request) -> Write:
    slot = {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}
    return put_new(keys.slot(request.channel, request.request_id) | slot)


def slots_taken(channel: Channel, count: int) -> Write:
    """Takes `count` slots of a channel. Refused if fewer are free, or if the capacity is not what was read."""
    return update(
        keys.channel(channel.name),
        adds={"running": count, "slot_changes": count},
        condition="#running <= :most AND #capacity = :capacity AND #paused = :no",
        most=channel.capacity - count,
        capacity=channel.capacity,
        no=False,
    )


def _given_back(request: Request) -> list[tuple[str, Write]]:
    channel = update(keys.channel(request.channel), adds={"running": -1, "slot_changes": 1})
    slot = delete(keys.slot(request.channel, request.request_id), "#attempt = :attempt", attempt=request.attempt)
    parts = [(CHANNEL, channel), (SLOT, slot)]
    return [*parts, (MUTEX, _unlocked(request))] if request.subscription_id else parts


def _locked(request: Request, now: float) -> Write:
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        {"owner": request.request_id, "attempt": request.attempt, "taken_at": now, "lease_until": now + LEASE_SECONDS},
        adds={"fence": 1},
        condition="attribute_not_exists(#owner) OR #lease_until <= :now",
        now=now,
    )


def _unlocked(request: Request) -> Write:
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        removes=("owner", "attempt", "taken_at", "lease_until"),
        condition="#owner = :me AND #attempt = :attempt",
        me=request.request_id,
        attempt=request.attempt,
    )


def renewed(request: Request, now: float) -> Write:
    """Renews the lease of the mutex. Refused if another attempt holds it, or after the longest time."""
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        {"lease_until": now + LEASE_SECONDS},
        condition="#owner = :me AND #attempt = :attempt AND #taken_at > :oldest",
        me=request.request_id,
        attempt=request.attempt,
        # A batch may run for days, and holds its concurrency key for all that time.
        oldest=now - (request.timeout if request.type == "batch" else LONGEST_LEASE_SECONDS),
    )
