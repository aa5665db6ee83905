"""Projects, the tenants: their keys, quotas, secrets and audit trail, as parts of the `Tenancy` object of `app.py`.

Importing any module of this package also runs this file. So this file imports the other modules only when a part of
`Tenancy` is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_ssm import SSMClient

    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.projects.audit import AuditStore
    from tidegate.projects.keys import ApiKeys, ApiKeyStore, Authentication
    from tidegate.projects.limits import RateLimiter, Rule, RunnerTime, SlowCalls, UsageStore
    from tidegate.projects.projects import Projects, ProjectStore
    from tidegate.projects.secrets import CallbackSecrets, CredentialRecords, CredentialStore, RootSecret
    from tidegate.settings import Settings


@dataclass(eq=False, repr=False, kw_only=True)
class Tenancy:
    """The settings and stores that belong to projects. Parts are made at their first use."""

    settings: Settings
    clock: Clock
    table: Table
    ssm: SSMClient
    secretsmanager: SecretsManagerClient
    # Closes the WebSocket connections of a key's record. Returns how many may still be open.
    close_connections: Callable[[str], int]

    @cached_property
    def store(self) -> ProjectStore:
        from tidegate.projects.projects import ProjectStore

        return ProjectStore(self.table)

    @cached_property
    def projects(self) -> Projects:
        from tidegate.projects.projects import Projects

        return Projects(self.store, self.clock)

    @cached_property
    def audit(self) -> AuditStore:
        from tidegate.projects.audit import AuditStore

        return AuditStore(self.table)

    # --- keys

    @cached_property
    def key_store(self) -> ApiKeyStore:
        from tidegate.projects.keys import ApiKeyStore

        return ApiKeyStore(self.table)

    @cached_property
    def authentication(self) -> Authentication:
        from tidegate.projects.keys import Authentication

        settings = self.settings
        return Authentication(self.key_store, self.clock, settings.admin_key_sha256, settings.key_cache_seconds)

    @cached_property
    def api_keys(self) -> ApiKeys:
        from tidegate.projects.keys import ApiKeys

        admin_key = self.settings.admin_key_sha256
        return ApiKeys(self.key_store, self.close_connections, self.projects.get, self.clock, admin_key)

    # --- secrets

    @cached_property
    def root_secret(self) -> RootSecret:
        from tidegate.projects.secrets import RootSecret

        return RootSecret(self.ssm, self.settings.callback_root_name)

    @cached_property
    def callback_secrets(self) -> CallbackSecrets:
        from tidegate.projects.secrets import CallbackSecrets

        return CallbackSecrets(self.store, self.root_secret, self.clock)

    @cached_property
    def credentials(self) -> CredentialStore:
        from tidegate.projects.secrets import CredentialStore

        return CredentialStore(self.secretsmanager, self.settings.secrets_prefix)

    @cached_property
    def credential_records(self) -> CredentialRecords:
        from tidegate.projects.secrets import CredentialRecords

        return CredentialRecords(self.table)

    # --- quotas

    @cached_property
    def usage(self) -> UsageStore:
        from tidegate.projects.limits import UsageStore

        return UsageStore(self.table)

    @cached_property
    def runner_time(self) -> RunnerTime:
        from tidegate.projects.limits import RunnerTime

        return RunnerTime(self.usage, self.store.quotas, self.clock)

    @cached_property
    def slow_calls(self) -> SlowCalls:
        from tidegate.projects.limits import SlowCalls

        return SlowCalls(self.table, self.clock)

    # --- requests per second

    @cached_property
    def rate_limiter(self) -> RateLimiter:
        """The rate limiter of projects, by project id."""
        from tidegate.aws import keys
        from tidegate.projects.limits import PROJECT

        return self._limiter(keys.rate_window, PROJECT)

    @cached_property
    def agent_rate_limiter(self) -> RateLimiter:
        """The rate limiter of hosts, by the id of their key."""
        from tidegate.aws import keys
        from tidegate.projects.limits import AGENT

        return self._limiter(keys.agent_rate_window, AGENT)

    @cached_property
    def socket_rate_limiter(self) -> RateLimiter:
        """The rate limiter of WebSocket messages, by the id of the key."""
        from tidegate.aws import keys
        from tidegate.projects.limits import SOCKET

        return self._limiter(keys.socket_rate_window, SOCKET)

    def _limiter(self, record_of: Callable[[str, int], dict[str, str]], rule: Rule) -> RateLimiter:
        from tidegate.projects.limits import WINDOW_SECONDS, RateLimiter

        def register(caller: str, window: int, function: str) -> int:
            expires_at = (window + 60) * WINDOW_SECONDS
            return self.usage.register_server(record_of(caller, window), function, expires_at, caller=caller)

        return RateLimiter(register, rule)

    def limit_socket(self, project_id: str, key_id: str, agent_id: str | None, count: int) -> None:
        """Raises RateLimited if the connection's host, project or key sends too many messages.

        A message counts as one request of the host, or of the project if the key belongs to no host. Requests over HTTP
        count there, too. For the key, the message counts as `count` messages.
        """
        from tidegate.projects.limits import SOCKET_RATE
        from tidegate.projects.model import AGENT_RATE, DEFAULT_BURST_SECONDS

        now = self.clock().timestamp()
        if agent_id is not None:
            self.agent_rate_limiter.require(key_id, AGENT_RATE, now)
        else:
            rate, is_default = self.projects.request_rate(project_id)
            if rate is not None:
                burst = DEFAULT_BURST_SECONDS if is_default else None
                self.rate_limiter.require(project_id, rate, now, burst_seconds=burst)
        self.socket_rate_limiter.require(key_id, SOCKET_RATE, now, count)
