"""The process's one App: every service wired to its adapters, made when first asked for."""

from __future__ import annotations

from tidegate.bootstrap.base import Base
from tidegate.bootstrap.batches import BatchesWiring
from tidegate.bootstrap.callbacks import CallbacksWiring
from tidegate.bootstrap.compensation import CompensationWiring
from tidegate.bootstrap.console import ConsoleWiring
from tidegate.bootstrap.distribution import DistributionWiring
from tidegate.bootstrap.exports import ExportsWiring
from tidegate.bootstrap.ingest import IngestWiring
from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.notifications import NotificationsWiring
from tidegate.bootstrap.outbound import OutboundWiring
from tidegate.bootstrap.queue import QueueWiring
from tidegate.bootstrap.sockets import SocketsWiring


class App(
    ConsoleWiring,
    SocketsWiring,
    BatchesWiring,
    ExportsWiring,
    DistributionWiring,
    CallbacksWiring,
    CompensationWiring,
    IngestWiring,
    LibraryWiring,
    QueueWiring,
    NotificationsWiring,
    OutboundWiring,
    Base,
):
    """One mixin a feature; see the modules beside this one."""


_installed: App | None = None


def app() -> App:
    global _installed
    if _installed is None:
        _installed = App()
    return _installed


def install(application: App | None) -> None:
    """Puts another App in its place, or None for a new one at the next call: a test's clock comes in here."""
    global _installed
    _installed = application
