"""The whole API behind one object."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import urllib3

from tidegate_client import config
from tidegate_client.errors import WaitTimeout
from tidegate_client.http import Http
from tidegate_client.resources.agents import Agents
from tidegate_client.resources.batches import Batches, Businesses
from tidegate_client.resources.downloads import Downloads, Jobs
from tidegate_client.resources.exports import Exports
from tidegate_client.resources.files import Files
from tidegate_client.resources.keys import Keys
from tidegate_client.resources.operations import Callbacks, Compensation, Operations, Queue
from tidegate_client.resources.projects import Projects
from tidegate_client.resources.requests import Credentials, Requests, Subscriptions

if TYPE_CHECKING:
    from tidegate_client.records import Change


class Client:
    """`Client("https://…", "key")`, or `Client()` with what `tidegate login` stored; safe to share between threads.

    | attribute | what it does |
    | --- | --- |
    | `files` | the library: put, fetch, list; `create(source_url=…)` ingests |
    | `downloads`, `jobs` | distribution: send a file to machines, see how far it is |
    | `exports` | CSV, Excel and more from paged data |
    | `businesses`, `batches` | long runs over many items |
    | `requests`, `queue` | queued work, its log, its channels |
    | `subscriptions`, `credentials` | sources that are looked at on schedule |
    | `callbacks`, `operations`, `compensation` | deliveries, statistics, the audit trail |
    | `projects`, `keys`, `agents` | tenants, keys, hosts |

    `watch(id, …)` follows records, `wait(id)` returns one when it is over. Lists are pages; iterating one reads on.

    Reads, and writes which an idempotency key or their nature makes repeatable, are retried on 429, 5xx and
    broken connections. What the API refuses arrives as an `ApiError` of the fitting class.
    """

    def __init__(
        self,
        api_url: str | None = None,
        key: str | None = None,
        *,
        profile: str | None = None,
        project_id: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        pool: urllib3.PoolManager | None = None,
    ) -> None:
        self._ws_url: str | None = None
        if api_url is None:
            stored = config.load(profile=profile)
            api_url, key = stored.required_url(), key or stored.key
            project_id, self._ws_url = project_id or stored.project_id, stored.ws_url
        self.http = Http(
            api_url, key, project_id=project_id, timeout=timeout, attempts=attempts, backoff=backoff, pool=pool
        )
        self.projects = Projects(self.http)
        self.keys = Keys(self.http)
        self.files = Files(self.http)
        self.downloads = Downloads(self.http)
        self.jobs = Jobs(self.http)
        self.agents = Agents(self.http)
        self.exports = Exports(self.http)
        self.businesses = Businesses(self.http)
        self.batches = Batches(self.http)
        self.queue = Queue(self.http)
        self.requests = Requests(self.http)
        self.subscriptions = Subscriptions(self.http)
        self.credentials = Credentials(self.http)
        self.compensation = Compensation(self.http)
        self.callbacks = Callbacks(self.http)
        self.operations = Operations(self.http)

    def watch(self, *record_ids: str, timeout: float | None = None) -> Iterable[Change]:
        """Each record as it is, then at each change, until all are over. Any id: a task's, a job's, an export's, …

        WaitTimeout after `timeout` seconds.
        """
        from tidegate_client.watching import Watch

        return Watch(self, record_ids, ws_url=self._ws_url, timeout=timeout)

    def wait(self, record_id: str, *, timeout: float | None = None) -> Change:
        """The record when it is over: `.succeeded`, `.status`, `.record`."""
        for change in self.watch(record_id, timeout=timeout):
            if change.ended:
                return change
        raise WaitTimeout(f"{record_id} is not over")

    def close(self) -> None:
        self.http.pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
