"""Outbound HTTP: the one client for URLs that callers name."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.adapters.http.client import SafeHttp
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

        return signed_headers
