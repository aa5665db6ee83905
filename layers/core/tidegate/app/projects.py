"""Wires projects: their keys, quotas and secrets, and the audit trail."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.aws import keys
from tidegate.projects.audit import AuditStore
from tidegate.projects.keys import ApiKeyStore, Authentication, KnownKeys
from tidegate.projects.limits import (
    AGENT,
    SOCKET,
    SOCKET_RATE,
    WINDOW_SECONDS,
    RateLimiter,
    RateQuotas,
    RunnerTime,
    SlowCalls,
    UsageStore,
)
from tidegate.projects.model import AGENT_RATE, DEFAULT_BURST_SECONDS
from tidegate.projects.projects import Projects, ProjectStore
from tidegate.projects.secrets import CallbackSecrets, CredentialRecords, CredentialStore, RootSecret

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.projects.keys import ApiKeys


class ProjectsPart:
    def __init__(self, app: App) -> None:
        settings, clock = app.settings, app.clock
        self._app = app
        self.store = ProjectStore(app.table)
        self.projects = Projects(self.store, clock)
        self.audit = AuditStore(app.table)

        self.key_store = ApiKeyStore(app.table)
        self.authentication = Authentication(self.key_store, clock, settings.admin_key_sha256)
        self.known_keys = KnownKeys(self.authentication.describe, clock, settings.key_cache_seconds)
        root = RootSecret(app.ssm, settings.callback_root_name)
        self.callback_secrets = CallbackSecrets(self.store, root, clock)
        self.credentials = CredentialStore(app.secretsmanager, settings.secrets_prefix)
        self.credential_records = CredentialRecords(app.table)

        self.usage = UsageStore(app.table)
        self.runner_time = RunnerTime(self.usage, self.store.quotas, clock)

        def register(project_id: str, window: int, name: str) -> int:
            ends = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(keys.rate_window(project_id, window), name, ends, project_id=project_id)

        def register_agent(key_id: str, window: int, name: str) -> int:
            ends = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(keys.agent_rate_window(key_id, window), name, ends, key_id=key_id)

        def register_socket(key_id: str, window: int, name: str) -> int:
            ends = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(keys.socket_rate_window(key_id, window), name, ends, key_id=key_id)

        self.rate_limiter = RateLimiter(register)
        self.socket_rate_limiter = RateLimiter(register_socket, SOCKET)
        self.agent_rate_limiter = RateLimiter(register_agent, AGENT)
        self.slow_calls = SlowCalls(app.table, clock)
        self.rate_quotas = RateQuotas(self.store, clock)

    def limit_socket(self, project_id: str, key_id: str, agent_id: str | None, count: int) -> None:
        """RateLimited if a connection's host or project, over HTTP and WebSockets together, or its key sends too much.

        `count` is what the message costs; as a request of the host or project it counts once.
        """
        now = self._app.clock().timestamp()
        if agent_id is not None:
            self.agent_rate_limiter.require(key_id, AGENT_RATE, now)
        else:
            rate, is_default = self.rate_quotas.of_project(project_id)
            if rate is not None:
                burst = DEFAULT_BURST_SECONDS if is_default else None
                self.rate_limiter.require(project_id, rate, now, burst_seconds=burst)
        self.socket_rate_limiter.require(key_id, SOCKET_RATE, now, count)

    @cached_property
    def api_keys(self) -> ApiKeys:
        """Made at its first use, because it needs the WebSocket sender: when a key ends, its connections are closed."""
        from tidegate.notifications.websocket import close_connections_of_key
        from tidegate.projects.keys import ApiKeys

        app, notifications = self._app, self._app.notifications
        return ApiKeys(
            self.key_store,
            lambda record_id: close_connections_of_key(notifications.connections, notifications.outgoing, record_id),
            self.projects.get,
            app.clock,
            app.settings.admin_key_sha256,
        )
