"""The registry of businesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.batches.model import Business, hash_auth_code
from tidegate.batches.store import BusinessStore
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import RecordNotFound
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.projects.model import Quotas


@dataclass(frozen=True, slots=True)
class BusinessEntry:
    """What a caller gives to register a business."""

    name: str
    process_url: str
    before_create_url: str | None = None
    before_run_url: str | None = None
    process_stop_url: str | None = None
    auth_code: str | None = None
    rate: float | None = None


class Registry:
    def __init__(
        self,
        store: BusinessStore,
        check_urls: Callable[[str, Mapping[str, str | None]], None],
        quotas: Callable[[str], Quotas],
        clock: Clock,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self.check_urls = check_urls
        self._clock = clock

    def add(self, project_id: str, entry: BusinessEntry, who: str = SYSTEM) -> Business:
        now = self._clock()
        business = _business(project_id, new_id("biz", now), entry, iso(now))
        self._check(project_id, entry)
        why = named_at(entry.name, entry.process_url)
        line = act(project_id, business.biz_id, now, who, "biz.create", why)
        self._store.add(business, line, self._quotas(project_id).businesses)
        return business

    def replace(self, project_id: str, biz_id: str, entry: BusinessEntry, who: str = SYSTEM) -> Business:
        """Running batches use the new URLs and rate from their next slice on."""
        present = self.get(project_id, biz_id)
        business = _business(project_id, biz_id, entry, present.created_at)
        self._check(project_id, entry)
        why = named_at(entry.name, entry.process_url)
        self._store.replace(business, act(project_id, biz_id, self._clock(), who, "biz.change", why))
        return business

    def _check(self, project_id: str, entry: BusinessEntry) -> None:
        fields = ("process_url", "before_create_url", "before_run_url", "process_stop_url")
        self.check_urls(project_id, {field: getattr(entry, field) for field in fields})

    def get(self, project_id: str, biz_id: str) -> Business:
        business = self._store.get(project_id, biz_id)
        if business is None:
            raise RecordNotFound(f"this project has no business with the id {biz_id[:200]}")
        return business

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Business]:
        return self._store.list(project_id, limit, cursor)


def _business(project_id: str, biz_id: str, entry: BusinessEntry, created_at: str) -> Business:
    return Business(
        biz_id=biz_id,
        project_id=project_id,
        name=entry.name,
        process_url=entry.process_url,
        created_at=created_at,
        before_create_url=entry.before_create_url,
        before_run_url=entry.before_run_url,
        process_stop_url=entry.process_stop_url,
        auth_code_sha256=hash_auth_code(entry.auth_code) if entry.auth_code else None,
        rate=entry.rate,
    )
