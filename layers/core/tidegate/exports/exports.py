"""The operations of callers on exports: order, show, list, link to the file, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import BadTable, Expired, NotReady, RecordNotFound, WrongState
from tidegate.exports import model as domain
from tidegate.exports.delivery import Deliveries
from tidegate.exports.email import LinkMail
from tidegate.exports.model import EXCEL, EXPIRED, Export, ExportOptions, ExportSpec
from tidegate.exports.objects import ExportBucket
from tidegate.exports.rendering.columns import check_rows, flat_rows
from tidegate.exports.store import ExportStore
from tidegate.projects.audit import act
from tidegate.queue.model import COMPLETED, Request

if TYPE_CHECKING:
    from tidegate.exports.direct.sources import AllowedSources
    from tidegate.queue.control import Control
    from tidegate.queue.queue import RequestQueue

LINK_SECONDS = 300
# How many pages a list filtered by status reads before it returns what it found.
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class DownloadLink:
    url: str
    expires_at: str


class Exports:
    def __init__(
        self,
        queue: RequestQueue,
        control: Callable[[], Control],
        store: ExportStore,
        objects: ExportBucket,
        check_urls: Callable[[str, Mapping[str, str | None]], None],
        clock: Clock,
        api_url: str,
        deliveries: Deliveries,
        mail: LinkMail,
        allowed: AllowedSources,
    ) -> None:
        self._queue = queue
        self._control = control
        self._store = store
        self._objects = objects
        self._check_urls = check_urls
        self._clock = clock
        self._api_url = api_url
        self._deliveries = deliveries
        self._mail = mail
        self._allowed = allowed

    def check(self, project_id: str, spec: ExportSpec) -> None:
        """Refuses an order that could only fail later."""
        self._check_urls(project_id, self._checked_tables(project_id, spec))

    def _checked_tables(self, project_id: str, spec: ExportSpec) -> dict[str, str | None]:
        """Checks all of the tables but their URLs, which it returns with their fields."""
        urls: dict[str, str | None] = {}
        for number, table in enumerate(spec.tables):
            place = f"[{number}]" if len(spec.tables) > 1 else ""
            with _blamed_on("template"):
                laid = spec.table(number)
            with _blamed_on("source_data"):
                if table.data is not None:
                    check_rows(flat_rows(table.data, f"source_data{place}"), laid.template, excel=spec.type == EXCEL)
                elif not table.address:
                    raise BadTable(f"table {number + 1} has no rows: give its source_data, source_url or source")
            if table.data is None and table.source:
                self._allowed.check(project_id, table.source, f"source{place}")
            elif table.data is None:
                urls[f"source_url{place}"] = table.source_url
        return urls

    def check_order(self, project_id: str, spec: ExportSpec, options: ExportOptions) -> None:
        self._check_urls(project_id, self._checked_tables(project_id, spec) | {"callback": options.callback})
        self._deliveries.check(project_id, options.deliver)
        self._mail.check(options.email)

    def submit(self, project_id: str, spec: ExportSpec, options: ExportOptions, who: str) -> str:
        self.check_order(project_id, spec, options)
        return self.place(project_id, spec, options, who)

    def place(
        self,
        project_id: str,
        spec: ExportSpec,
        options: ExportOptions,
        who: str,
        *,
        task_id: str | None = None,
        schedule_id: str | None = None,
        extra_writes: Sequence[Any] = (),
    ) -> str:
        """Queues an order that was checked. Idempotent for the same `task_id`."""
        now = self._clock()
        task_id = task_id or new_id(domain.PREFIX, now)
        spec_key = domain.spec_object(project_id, task_id)
        from tidegate.exports.source_json import write_exact

        self._objects.put(spec_key, write_exact(spec.as_data()))
        fields: dict[str, Any] = {
            "name": options.name,
            "type": spec.type,
            "operator_id": options.operator_id,
            "merchant_type": options.merchant_type,
            "merchant_id": options.merchant_id,
            "schedule_id": schedule_id,
        }
        # Lists are filtered by text; the record shows the id with the type that the caller gave.
        listed = fields | {"merchant_id": None if options.merchant_id is None else str(options.merchant_id)}
        export = Export(task_id=task_id, project_id=project_id, created_at=iso(now), **listed)
        payload = fields | {"file_name": options.file_name or domain.default_file_name(now, task_id)}
        payload["deliver"] = [asdict(each) for each in options.deliver] or None
        payload["email"] = list(options.email) or None
        self._queue.submit(
            project_id,
            domain.TYPE,
            payload={name: value for name, value in payload.items() if value is not None},
            priority=options.priority,
            request_id=task_id,
            callback=options.callback,
            extra_writes=[self._store.write(export), *extra_writes],
            timeout=options.max_exec_time,
            who=who,
        )
        return task_id

    def shown(self, request: Request) -> dict[str, Any]:
        return domain.shown(request, self._clock(), self._api_url)

    def get(self, project_id: str, task_id: str) -> dict[str, Any]:
        return self.shown(self._request(project_id, task_id))

    def get_many(self, project_id: str, task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Those exports that still exist, by task_id."""
        found = self._store.requests(project_id, task_ids)
        return {request.request_id: self.shown(request) for request in found}

    def list(
        self, project_id: str, *, status: str | None, wanted: Mapping[str, Any], limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _ in range(_ROUNDS):
            page = self._store.page(project_id, limit - len(found), cursor, wanted)
            records = [self.shown(request) for _, request in page.items if request is not None]
            found += [record for record in records if status in (None, record["status"])]
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        return Listed(found, cursor)

    def link(self, project_id: str, task_id: str) -> DownloadLink:
        request = self._request(project_id, task_id)
        shown = self.shown(request)
        if shown["status"] == EXPIRED:
            raise Expired("the file was deleted after 7 days: order the export again")
        if request.status != COMPLETED or not request.result:
            then = "order the export again" if request.is_over else "its file can be downloaded once it is completed"
            raise NotReady(f"the status of the export is {request.status}: {then}")
        url = self._objects.link(request.result["key"], LINK_SECONDS, request.result["file_name"])
        return DownloadLink(url, iso(self._clock() + timedelta(seconds=LINK_SECONDS)))

    def delete(self, project_id: str, task_ids: Sequence[str], who: str) -> int:
        """Cancels running exports, then deletes files and records. Returns how many exports existed."""
        return sum(self._delete(project_id, task_id, who) for task_id in dict.fromkeys(task_ids))

    def _delete(self, project_id: str, task_id: str, who: str) -> bool:
        try:
            request = self._request(project_id, task_id)
        except RecordNotFound:
            return False
        if not request.is_over:
            # It may have ended meanwhile.
            with suppress(WrongState):
                self._control().cancel(project_id, task_id, who, "deleted")
        self.forget_files(project_id, task_id)
        self._store.remove(project_id, task_id, act(project_id, task_id, self._clock(), who, "export.delete"))
        return True

    def forget_files(self, project_id: str, task_id: str) -> None:
        self._objects.abort_uploads(domain.output_prefix(project_id, task_id))
        self._objects.remove(domain.output_prefix(project_id, task_id))
        self._objects.remove(domain.staging_prefix(project_id, task_id))

    def _request(self, project_id: str, task_id: str) -> Request:
        request = self._queue.get(project_id, task_id)
        if request.type != domain.TYPE:
            raise RecordNotFound(f"this project has no export with the id {task_id[:200]}")
        return request


@contextmanager
def _blamed_on(field: str) -> Iterator[None]:
    try:
        yield
    except BadTable as error:
        raise BadTable(error.detail, errors=[{"loc": ["body", field], "msg": error.detail}]) from error
