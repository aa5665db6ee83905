"""One action on all requests that match a filter, a page at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidegate.errors import Conflict, QuotaExceeded, RecordNotFound, WrongState
from tidegate.queue.control import Control
from tidegate.queue.model import TRANSITIONS, Request
from tidegate.queue.store import RequestStore

_THREADS = 8


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """How many requests were changed, how many were skipped (state, conflict, quota), and the next page's cursor."""

    changed: int
    skipped: int
    next_cursor: str | None


class BulkControl:
    def __init__(self, store: RequestStore, control: Control) -> None:
        self._store = store
        self._control = control

    def act(
        self,
        project_id: str,
        action: str,
        wanted: dict[str, str],
        limit: int,
        cursor: str | None,
        *,
        priority: int | None = None,
        who: str,
    ) -> BulkOutcome:
        """Acts on one page. To act on all, call it with `next_cursor` until that is None."""
        page = self._store.list(project_id, limit, cursor, **wanted)
        allowed = TRANSITIONS[action][0]
        candidates = [request for request in page.items if request.status in allowed]
        with ThreadPoolExecutor(_THREADS) as pool:
            changed = sum(pool.map(lambda request: self._act(request, action, priority, who), candidates))
        return BulkOutcome(changed, len(page.items) - changed, page.next_cursor)

    def _act(self, request: Request, action: str, priority: int | None, who: str) -> bool:
        control = self._control
        ids = (request.project_id, request.request_id)
        try:
            if action == "prioritize":
                control.prioritize(*ids, priority or request.priority, who)
            else:
                {"cancel": control.cancel, "retry": control.retry}[action](*ids, who)
        except (Conflict, QuotaExceeded, RecordNotFound, WrongState):
            return False
        return True
