"""Wires projects: their keys, quotas and secrets, and the audit trail."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.aws import keys
from tidegate.projects.audit_store import AuditStore
from tidegate.projects.authentication import Authentication
from tidegate.projects.callback_secrets import CallbackSecrets
from tidegate.projects.credential_records import CredentialRecords
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.key_store import ApiKeyStore
from tidegate.projects.known_keys import KnownKeys
from tidegate.projects.projects import Projects
from tidegate.projects.rate_limit import AGENT, WINDOW_SECONDS, RateLimiter
from tidegate.projects.rate_quotas import RateQuotas
from tidegate.projects.root_secret import RootSecret
from tidegate.projects.slow_calls import SlowCalls
from tidegate.projects.store import ProjectStore
from tidegate.projects.usage_store import UsageStore

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.projects.api_keys import ApiKeys


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

        def register(project_id: str, window: int, name: str) -> int:
            ends = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(keys.rate_window(project_id, window), name, ends, project_id=project_id)

        def register_agent(key_id: str, window: int, name: str) -> int:
            ends = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(keys.agent_rate_window(key_id, window), name, ends, key_id=key_id)

        self.rate_limiter = RateLimiter(register)
        self.agent_rate_limiter = RateLimiter(register_agent, AGENT)
        self.slow_calls = SlowCalls(app.table, self.store, clock)
        self.rate_quotas = RateQuotas(self.store, clock)

    @cached_property
    def api_keys(self) -> ApiKeys:
        """Made at its first use, because it needs the WebSocket sender: when a key ends, its connections are closed."""
        from tidegate.notifications.websocket_sender import close_connections_of_key
        from tidegate.projects.api_keys import ApiKeys

        app, notifications = self._app, self._app.notifications
        return ApiKeys(
            self.key_store,
            lambda record_id: close_connections_of_key(notifications.connections, notifications.outgoing, record_id),
            self.projects.get,
            app.clock,
            app.settings.admin_key_sha256,
        )
