"""Callbacks for the API: check a URL at submission, list deliveries, deliver again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.common.ids import Clock
from tidegate.common.listing import Listed
from tidegate.errors import RecordNotFound, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.notifications.callback_queue import CallbackQueue
from tidegate.notifications.delivery_model import DEAD, Delivery, redelivered
from tidegate.notifications.delivery_store import DeliveryStore
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import Project


class Callbacks:
    def __init__(
        self,
        store: DeliveryStore,
        queue: Callable[[], CallbackQueue],
        http: Callable[[], SafeHttp],
        project_of: Callable[[str], Project],
        clock: Clock,
    ) -> None:
        self._store = store
        self._queue = queue
        self._http = http
        self._project_of = project_of
        self._clock = clock

    def check(self, project_id: str, urls: Mapping[str, str | None]) -> None:
        """UrlNotAllowed if a request to one of the URLs, by the field that has it, would be refused. None passes."""
        given = {field: url for field, url in urls.items() if url}
        if not given:
            return
        refused = self._http().refused_urls(
            given.values(), allow_private=self._project_of(project_id).allow_private_urls, project_id=project_id
        )
        for field, url in given.items():
            if error := refused.get(url):
                raise UrlNotAllowed(error.detail, errors=[{"loc": ["body", field], "msg": error.detail}]) from error

    def get(self, project_id: str, delivery_id: str) -> Delivery:
        delivery = self._store.get(project_id, delivery_id)
        if delivery is None:
            raise RecordNotFound(f"this project has no callback with the id {delivery_id}")
        return delivery

    def list(
        self, project_id: str, *, record_id: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[Delivery]:
        return self._store.list(project_id, record_id=record_id, state=state, limit=limit, cursor=cursor)

    def redrive(self, project_id: str, delivery_id: str) -> None:
        """For a dead letter that an operator moved back to the queue: delivers it again if it is still dead."""
        delivery = self._store.get(project_id, delivery_id)
        if delivery is not None and delivery.state == DEAD:
            self.redeliver(project_id, delivery_id)

    def redeliver(self, project_id: str, delivery_id: str, who: str = SYSTEM) -> Delivery:
        """Delivers it again, with attempts for another day. The id stays the same, so the receiver can de-duplicate."""
        now = self._clock()
        delivery = redelivered(self.get(project_id, delivery_id), now)
        line = act(project_id, delivery_id, now, who, "callback.redeliver", f"callback of {delivery.record_id}")
        self._store.restart(delivery, now.timestamp(), line)
        self._queue().later(delivery, 0)
        return delivery
