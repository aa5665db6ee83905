"""Calls that ask the business for its consent, before a batch is created and before it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.common.ids import Clock
from tidegate.errors import BusinessRefused
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project

ASK_LIMITS = Limits(connect=5, read=10, total=10, max_bytes=64 * 1024)


class BusinessCalls:
    def __init__(self, http: SafeHttp, sign: Signer, project_of: Callable[[str], Project], clock: Clock) -> None:
        self._http = http
        self._sign = sign
        self._project_of = project_of
        self._clock = clock

    def ask(self, project_id: str, url: str, message_id: str, payload: Mapping[str, Any]) -> None:
        """Raises unless the business agrees: it answers 2xx, and not `{"result": "error", "msg": …}`."""
        project = self._project_of(project_id)
        body = json.dumps(payload, separators=(",", ":")).encode()
        signed = self._sign(project, message_id, self._clock(), body)
        reply = self._http.send(
            "POST",
            url,
            headers={"content-type": "application/json", **signed},
            body=body,
            allow_private=project.allow_private_urls,
            limits=ASK_LIMITS,
            redirects=0,
            project_id=project_id,
        )
        reply.raise_for_status(self._clock())
        try:
            answer = reply.json()
        except ValueError:
            return
        if isinstance(answer, dict) and answer.get("result", "ok") != "ok":
            raise BusinessRefused(
                str(answer.get("msg") or answer.get("message") or "the business refused without a reason")[:500]
            )
