"""The whole API behind one object."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import urllib3

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


class Client:
    """`Client("https://…", "key")`; safe to share between threads.

    Reads, and writes which an idempotency key or their nature makes repeatable, are retried on 429, 5xx and
    broken connections. What the API refuses arrives as an `ApiError` of the fitting class.
    """

    def __init__(
        self,
        api_url: str,
        key: str | None = None,
        *,
        project_id: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.25,
        pool: urllib3.PoolManager | None = None,
    ) -> None:
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

    def close(self) -> None:
        self.http.pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
