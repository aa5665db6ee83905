"""Builds the API from the routers of all capabilities."""

from __future__ import annotations

from tidegate.web import system
from tidegate.web.batches import businesses
from tidegate.web.batches import routes as batches
from tidegate.web.batches import schedules as batch_schedules
from tidegate.web.console import routes as console
from tidegate.web.console import system as console_system
from tidegate.web.distribution import agents, fleet, jobs, submits
from tidegate.web.distribution import tasks as downloads
from tidegate.web.exports import routes as exports
from tidegate.web.exports import schedules as export_schedules
from tidegate.web.files import routes as files
from tidegate.web.ingest import routes as subscriptions
from tidegate.web.notifications import callbacks
from tidegate.web.notifications import websocket as sockets
from tidegate.web.openapi import Api
from tidegate.web.projects import keys
from tidegate.web.projects import routes as projects
from tidegate.web.queue import compensation, operations, requests
from tidegate.web.queue import routes as queue
from tidegate.web.resolver import build_resolver


def build_api() -> Api:
    return build_resolver(
        [
            system.router,
            console.router,
            console_system.router,
            callbacks.router,
            compensation.router,
            projects.router,
            keys.router,
            files.router,
            submits.build_router(),
            downloads.router,
            jobs.router,
            agents.build_router(),
            fleet.router,
            exports.router,
            export_schedules.router,
            businesses.router,
            batches.router,
            batch_schedules.router,
            queue.router,
            requests.router,
            operations.router,
            subscriptions.router,
            sockets.router,
        ]
    )
