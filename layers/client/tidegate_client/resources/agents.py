from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tidegate_client.errors import BadAnswer
from tidegate_client.http import Http, path_part
from tidegate_client.models import Presence, Transfer, TransferResult

# The server answers a long poll after `wait`; the rest is for the network.
LONG_POLL_MARGIN = 12.0
NEEDED = frozenset({"transfer_id", "url", "file_name", "target_file_dir", "target_user", "signature"})


class Agents:
    def __init__(self, http: Http) -> None:
        self._http = http

    def transfers(self, agent_id: str, *, wait: int = 0) -> list[Transfer]:
        path = f"/v1/agents/{path_part(agent_id)}/transfers"
        answer = self._http.get(path, {"wait": wait}, timeout=wait + LONG_POLL_MARGIN)
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) and item.keys() >= NEEDED for item in items):
            raise BadAnswer("the answer is not a list of transfers: is a proxy in between?")
        return cast("list[Transfer]", items)

    def report(self, agent_id: str, results: Sequence[TransferResult]) -> None:
        """Results may be sent any number of times: a final one never changes."""
        path = f"/v1/agents/{path_part(agent_id)}/results"
        answer = self._http.act(path, {"items": list(results)}, idempotent=True)
        if not isinstance(answer, dict) or "taken" not in answer:
            raise BadAnswer("the answer does not say that the results were taken: is a proxy in between?")

    def tell_presence(self, agent_id: str, presence: Presence) -> None:
        """Where peers may call this host; forgotten two hours after it was last told."""
        self._http.call("PUT", f"/v1/agents/{path_part(agent_id)}/presence", body=presence)
