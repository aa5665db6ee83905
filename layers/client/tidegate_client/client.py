"""`Client`: all routes of the API as methods of one object."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

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
from tidegate_client.resources.releases import Releases
from tidegate_client.resources.requests import Credentials, Requests, Subscriptions

if TYPE_CHECKING:
    from typing_extensions import Self

    from tidegate_client.records import Change


class Client:
    """The API client: `Client("https://…", "key")`, or `Client()` for the login that `tidegate login` stored.
    Thread-safe.

    | attribute | what it does |
    | --- | --- |
    | `files` | the library: put, fetch, list; `create(source_url=…)` ingests |
    | `downloads`, `jobs` | distribution: send a file to hosts, follow its progress |
    | `exports` | CSV, Excel and more from paged data |
    | `businesses`, `batches` | many items through a business callback, at a rate |
    | `requests`, `queue` | requests of the queue, their execution log, the channels |
    | `subscriptions`, `credentials` | sources that are scanned on a schedule |
    | `callbacks`, `operations`, `compensation` | deliveries, statistics, the audit trail, overdue work |
    | `projects`, `keys`, `agents` | projects, keys, hosts |
    | `releases` | which files should be on which hosts |

    `watch(id, …)` yields the changes of records; `wait(id)` returns a record once it has ended. Lists are pages;
    iterating over a page also fetches the following pages.

    Reads, and writes that are safe to repeat, are retried on 429, 5xx and broken connections. An answer of 4xx or 5xx
    is raised as the subclass of `ApiError` for its status."""

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
        self.releases = Releases(self.http)
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
        """Yields the current state of each record, then every change, until all records have ended.

        The ids may be those of Tasks, Jobs, exports, requests and batches. Raises WaitTimeout after `timeout`
        seconds."""
        from tidegate_client.watching import Watch

        return Watch(self, record_ids, ws_url=self._ws_url, timeout=timeout)

    def wait(self, record_id: str, *, timeout: float | None = None) -> Change:
        """Waits until the record has ended. The result has `.succeeded`, `.status` and `.record`.

        Raises WaitTimeout after `timeout` seconds."""
        for change in self.watch(record_id, timeout=timeout):
            if change.ended:
                return change
        raise WaitTimeout(f"{record_id} has not ended")

    def close(self) -> None:
        """Closes the client's idle connections."""
        self.http.pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
