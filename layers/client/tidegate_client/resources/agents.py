from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tidegate_client.http import Http, path_part
from tidegate_client.models import Presence, Transfer, TransferResult

# The server answers a long poll after `wait`; the rest is for the network.
LONG_POLL_MARGIN = 12.0


class Agents:
    def __init__(self, http: Http) -> None:
        self._http = http

    def transfers(self, agent_id: str, *, wait: int = 0) -> list[Transfer]:
        path = f"/v1/agents/{path_part(agent_id)}/transfers"
        answer = self._http.get(path, {"wait": wait}, timeout=wait + LONG_POLL_MARGIN)
        return cast("list[Transfer]", answer["items"])

    def report(self, agent_id: str, results: Sequence[TransferResult]) -> None:
        """Results may be sent any number of times: a final one never changes."""
        self._http.act(f"/v1/agents/{path_part(agent_id)}/results", {"items": list(results)}, idempotent=True)

    def tell_presence(self, agent_id: str, presence: Presence) -> None:
        """Where peers may call this host; forgotten two hours after it was last told."""
        self._http.call("PUT", f"/v1/agents/{path_part(agent_id)}/presence", body=presence)
