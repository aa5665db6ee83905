"""Outbound HTTP: the one client for URLs that callers name."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.common.ports import Signer
    from tidegate.http.client import SafeHttp


class OutboundWiring(Base):
    @cached_property
    def http(self) -> SafeHttp:
        from tidegate.http.client import SafeHttp

        return SafeHttp(
            allowed_hosts=self.settings.url_allow_list.split(","),
            # Lambda's own control endpoint is on loopback, which a project with private URLs may otherwise reach.
            refused_endpoints=filter(None, [os.environ.get("AWS_LAMBDA_RUNTIME_API")]),
        )

    @cached_property
    def sign(self) -> Signer:
        from tidegate.http.signing import signed_headers

        return signed_headers
