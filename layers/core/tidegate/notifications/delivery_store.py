"""Callbacks with every attempt to deliver them, and the circuit-breaker state of their hosts and projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import WrongState
from tidegate.notifications.circuit_rules import PROJECT_FIRST_LIMIT, PROJECT_FIRST_TOOK, ProjectState
from tidegate.notifications.delivery_model import KEPT_SECONDS, PENDING, Attempt, Delivery
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

DUE_KIND = "callback"
_MUTABLE = ("state", "tries", "attempts", "next_attempt_at", "gives_up_at", "delivered_at")


def delivery_of(item: Item) -> Delivery:
    known: dict[str, Any] = {name: item.get(name) for name in Delivery.__dataclass_fields__}
    return Delivery(**known | {"attempts": tuple(Attempt(**attempt) for attempt in item.get("attempts", ()))})


def _plain(delivery: Delivery) -> dict[str, Any]:
    attempts = [{k: v for k, v in asdict(attempt).items() if v is not None} for attempt in delivery.attempts]
    return asdict(delivery) | {"attempts": attempts}


class DeliveryStore:
    """Only the holder of a delivery's lease may call the receiver."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, delivery: Delivery, lease_until: float) -> bool:
        """Adds a delivery with its lease taken. False if it exists already."""
        lists = {
            "gsi1pk": keys.callbacks_list(delivery.project_id),
            "gsi1sk": f"{delivery.created_at}#{delivery.delivery_id}",
            "gsi2pk": keys.callbacks_of(delivery.project_id, delivery.record_id),
            "gsi2sk": f"{delivery.created_at}#{delivery.delivery_id}",
        }
        kept = {"lease_until": lease_until, "expires_at": int(lease_until) + KEPT_SECONDS}
        item = keys.callback(delivery.project_id, delivery.delivery_id) | _plain(delivery) | lists | kept
        return self._table.try_write(put_new(item | keys.due(delivery.delivery_id, lease_until, DUE_KIND)))

    def claim(self, project_id: str, delivery_id: str, now: float, lease_until: float) -> Delivery | None:
        claimed = update(
            keys.callback(project_id, delivery_id),
            {"lease_until": lease_until, **keys.due(delivery_id, lease_until, DUE_KIND)},
            condition="#state = :pending AND #next_attempt_at <= :now"
            " AND (attribute_not_exists(#lease_until) OR #lease_until <= :now)",
            pending=PENDING,
            now=now,
        )
        try:
            return delivery_of(self._table.write(claimed))
        except ConditionFailed:
            return None

    def settle(self, delivery: Delivery, lease_until: float, now: float) -> bool:
        """Writes the result and releases the lease. False if the lease was lost meanwhile."""
        sets = {name: value for name, value in _plain(delivery).items() if name in _MUTABLE}
        sets["expires_at"] = int(now) + KEPT_SECONDS
        removes = ["lease_until"]
        if delivery.state == PENDING:
            sets |= keys.due(delivery.delivery_id, delivery.next_attempt_at, DUE_KIND)
        else:
            removes += keys.DUE_ATTRIBUTES
        settled = update(
            keys.callback(delivery.project_id, delivery.delivery_id),
            sets,
            removes=removes,
            condition="#lease_until = :lease",
            lease=lease_until,
        )
        return self._table.try_write(settled)

    def restart(self, delivery: Delivery, now: float, line: AuditLine) -> None:
        """Starts the delivery again. WrongState while an attempt is running, whose result would be lost."""
        sets = {name: value for name, value in _plain(delivery).items() if name in _MUTABLE and name != "attempts"}
        restarted = update(
            keys.callback(delivery.project_id, delivery.delivery_id),
            sets
            | {"expires_at": int(now) + KEPT_SECONDS}
            | keys.due(delivery.delivery_id, delivery.next_attempt_at, DUE_KIND),
            removes=("lease_until", "delivered_at"),
            condition="attribute_exists(#pk) AND (attribute_not_exists(#lease_until) OR #lease_until <= :now)",
            now=now,
        )
        try:
            self._table.transact([restarted, audit_write(line)])
        except ConditionFailed as error:
            raise WrongState("the callback is being delivered right now: try again in a few seconds") from error

    def get(self, project_id: str, delivery_id: str) -> Delivery | None:
        item = self._table.get(keys.callback(project_id, delivery_id), consistent=True)
        return delivery_of(item) if item else None

    def list(
        self, project_id: str, *, record_id: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[Delivery]:
        place, index = keys.callbacks_list(project_id), "gsi1"
        if record_id:
            place, index = keys.callbacks_of(project_id, record_id), "gsi2"
        wanted = {"state": state} if state else {}
        page = self._table.find(place, limit=limit, cursor=cursor, wanted=wanted, index=index)
        return Listed([replace(delivery_of(item), body="") for item in page.items], page.cursor)


@dataclass(frozen=True, slots=True)
class HostState:
    """`places`: when each running callback's place becomes free; `took`: the seconds that the last callback took."""

    limit: int
    open_until: float
    took: float
    places: Mapping[int, float]

    def free_places(self, now: float) -> list[int]:
        return [place for place in range(self.limit) if self.places.get(place, 0.0) <= now]


_PLACE = "place_"
_HOST_KEPT_SECONDS = 3600


def _places(item: Item) -> dict[int, float]:
    return {int(name.removeprefix(_PLACE)): float(item[name]) for name in item if name.startswith(_PLACE)}


def _host_state(item: Item) -> HostState:
    took = float(item.get("took", 1.0))
    return HostState(int(item.get("limit", 1)), float(item["open_until"]), took, _places(item))


def _project_state(item: Item) -> ProjectState:
    slow_at, limit = float(item["slow_at"]), int(item.get("limit", PROJECT_FIRST_LIMIT))
    limit_at = float(item["limit_at"]) if "limit_at" in item else slow_at
    return ProjectState(limit, limit_at, slow_at, float(item.get("took", PROJECT_FIRST_TOOK)), _places(item))


class CircuitStore:
    """State of slow or failing hosts, and of projects that have slow ones. Others have no item.

    `host` may be `ALL_HOSTS` for a project's places and times.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def states(self, project_id: str, host: str) -> tuple[HostState | None, ProjectState | None]:
        """The state of the host and of its project, with one read."""
        of_host, of_project = keys.circuit(project_id, host), keys.circuit(project_id, keys.ALL_HOSTS)
        found = {item["pk"]: item for item in self._table.batch_get([of_host, of_project])}
        one, all_hosts = found.get(of_host["pk"]), found.get(of_project["pk"])
        return _host_state(one) if one else None, _project_state(all_hosts) if all_hosts else None

    def take(self, project_id: str, host: str, place: int, now: float, until: float) -> bool:
        name = f"{_PLACE}{place}"
        free = f"#open_until <= :now AND (attribute_not_exists(#{name}) OR #{name} <= :now)"
        return self._table.try_write(update(keys.circuit(project_id, host), {name: until}, condition=free, now=now))

    def free(self, project_id: str, host: str, place: int) -> None:
        self._table.try_write(update(keys.circuit(project_id, host), removes=(f"{_PLACE}{place}",)))

    def reserve(
        self, project_id: str, host: str, earliest: float, latest: float, step: float, name: str = "next_at"
    ) -> float | None:
        """Reserves the next free time at the host, `step` seconds after the last one. None if it is after `latest`.

        `name`: the attribute with the last time.
        """
        key, after, until = keys.circuit(project_id, host), round(earliest * 1000), round((latest - step) * 1000)
        within = f"#{name} >= :after AND #{name} <= :until"
        try:
            later = update(key, adds={name: round(step * 1000)}, condition=within, after=after, until=until)
            return float(self._table.write(later)[name]) / 1000
        except ConditionFailed as refused:
            if float((refused.item or {}).get(name, 0)) > until:
                return None
            at = after + round(step * 1000)
            self._table.try_write(update(key, {name: at}))
            return at / 1000

    def fail(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> int:
        """Counts a failure. Returns how many there were in a row."""
        failed = self._left(project_id, host, now, {"limit": limit, "took": took}, {"failures": 1}, place)
        return int(failed["failures"])

    def succeed(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> None:
        self._left(project_id, host, now, {"limit": limit, "took": took, "failures": 0}, None, place)

    def slow(
        self, project_id: str, now: float, took: float | None, limit: int | None, places: Mapping[int, float]
    ) -> None:
        """Records a slow callback of a project. None: the value stays. `places`: until when they are taken."""
        sets: dict[str, Any] = {f"{_PLACE}{place}": until for place, until in places.items()}
        sets |= {"slow_at": now, "open_until": 0, "expires_at": int(now) + _HOST_KEPT_SECONDS}
        sets |= {"took": took, "limit": limit, "limit_at": None if limit is None else now}
        self._table.write(update(keys.circuit(project_id, keys.ALL_HOSTS), sets, condition=""))

    def quick(self, project_id: str, now: float, took: float, limit: int | None, place: int) -> None:
        """Frees the place of a callback that was not slow. None: the limit stays."""
        sets = {"took": took, "limit": limit, "limit_at": None if limit is None else now}
        key = keys.circuit(project_id, keys.ALL_HOSTS)
        self._table.try_write(update(key, sets, removes=(f"{_PLACE}{place}",)))

    def _left(
        self,
        project_id: str,
        host: str,
        now: float,
        sets: dict[str, Any],
        adds: dict[str, int | set[str]] | None,
        place: int | None,
    ) -> Item:
        sets |= {"open_until": now, "expires_at": int(now) + _HOST_KEPT_SECONDS}
        removes = () if place is None else (f"{_PLACE}{place}",)
        write = update(keys.circuit(project_id, host), sets, adds=adds, removes=removes, condition="")
        return self._table.write(write)

    def pause(self, project_id: str, host: str, until: float) -> None:
        sets = {"open_until": until, "expires_at": int(until) + _HOST_KEPT_SECONDS}
        self._table.write(update(keys.circuit(project_id, host), sets, condition=""))

    def clear(self, project_id: str, host: str) -> None:
        self._table.write(delete(keys.circuit(project_id, host)))
