"""Outbound HTTP: the one client for URLs that callers name, and how its calls are signed."""

from __future__ import annotations

import os
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.adapters.http.client import SafeHttp
    from tidegate.domain.projects import Project
    from tidegate.services.callback_secrets import CallbackSecrets
    from tidegate.services.ports import Signer


class OutboundWiring(Base):
    @cached_property
    def http(self) -> SafeHttp:
        from tidegate.adapters.dynamo.host_usage import HostUsage
        from tidegate.adapters.http.client import SafeHttp
        from tidegate.adapters.http.host_limits import HostLimits

        settings, runtime_api = self.settings, os.environ.get("AWS_LAMBDA_RUNTIME_API")
        return SafeHttp(
            allowed_hosts=settings.url_allow_list.split(","),
            refused_endpoints=filter(None, [runtime_api]),
            # On AWS only Lambda's own services listen there; a local cloud's functions reach their test servers so.
            loopback=not runtime_api or "AWS_ENDPOINT_URL" in os.environ,
            host_limits=HostLimits(
                lambda *use: HostUsage(self.table, self.clock).add(*use),
                settings.host_calls_per_second,
                settings.host_connections,
            ),
        )

    @cached_property
    def sign(self) -> Signer:
        from tidegate.adapters.http.webhooks import signed_headers

        secrets = self.callback_secrets

        def sign(project: Project, message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]:
            return signed_headers(secrets.of(project), message_id, now, body)

        return sign

    @cached_property
    def callback_secrets(self) -> CallbackSecrets:
        from tidegate.adapters.dynamo.projects import ProjectRepository
        from tidegate.adapters.root_secret import RootSecret
        from tidegate.services.callback_secrets import CallbackSecrets

        root = RootSecret(self.ssm, self.settings.callback_root_name)
        return CallbackSecrets(ProjectRepository(self.table), root, self.clock)
