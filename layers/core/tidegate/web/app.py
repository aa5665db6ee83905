"""The whole API: one router a resource."""

from __future__ import annotations

from tidegate.web.contract import Api
from tidegate.web.resolver import build_resolver
from tidegate.web.routes import (
    agents,
    batches,
    businesses,
    callbacks,
    compensation,
    console,
    downloads,
    exports,
    files,
    jobs,
    keys,
    operations,
    projects,
    queue,
    requests,
    sockets,
    submits,
    subscriptions,
    system,
)


def build_api() -> Api:
    return build_resolver(
        [
            system.router,
            console.router,
            callbacks.router,
            compensation.router,
            projects.router,
            keys.router,
            files.router,
            submits.build_router(),
            downloads.router,
            jobs.router,
            agents.build_router(),
            exports.router,
            businesses.router,
            batches.router,
            queue.router,
            requests.router,
            operations.router,
            subscriptions.router,
            sockets.router,
        ]
    )
