"""A fake GSE over real HTTP: creates transfers, reports their results, and fails on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock

PATH = "/api/v2/task/extensions/"
Agent = tuple[str, str]


class GseServer:
    """`trouble` makes calls fail, by name: with a status, "hang" (never answers) or "lose" (acts, then hangs up)."""

    def __init__(self) -> None:
        self.base_url = ""
        self.calls: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.transfers: dict[str, dict[Agent, dict[str, Any]]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.terminated: list[tuple[str, list[Agent]]] = []
        self.trouble: dict[str, int | str] = {}
        self.code = 0
        # If set, calls with other credentials are answered with 401.
        self.credentials: dict[str, str] | None = None
        # Transfers to these agents are refused.
        self.refused: set[str] = set()
        # Put in front of the rows of every result.
        self.extra_rows: list[dict[str, Any]] = []
        self.stopped = threading.Event()
        self._lock = threading.Lock()

    def count(self, name: str) -> int:
        return sum(call == name for call, _, _ in self.calls)

    @contextmanager
    def in_trouble(self, name: str, trouble: int | str) -> Iterator[None]:
        """Makes calls of this name fail inside the block. Waits at the end until such a call has arrived.

        Without that, a call whose client gave up early could be handled after the trouble is over.
        """
        before = self.count(name)
        self.trouble[name] = trouble
        yield
        until = idle_clock() + 60
        while self.count(name) == before and idle_clock() < until:
            time.sleep(0.01)
        del self.trouble[name]

    def set(self, code: int, *agents: str, message: str = "", progress: int = 0, **figures: Any) -> None:
        """Sets the results of these agents, or of all. `figures`: size, speed, start_time, end_time."""
        for transfer in self.transfers.values():
            for agent in transfer:
                if not agents or agent[0] in agents:
                    result = {"error_code": code, "error_msg": message, "progress": progress}
                    transfer[agent] = {**result, "figures": figures}

    def fail_upload(self, code: int, message: str) -> None:
        for task_id in self.transfers:
            self.uploads[task_id] = {"error_code": code, "error_msg": message}

    def answer(self, handler: Handler) -> None:
        name = handler.path.removeprefix(PATH)
        body = json.loads(handler.body())
        headers = {key.lower(): value for key, value in handler.headers.items()}
        with self._lock:
            self.calls.append((name, body, headers))
            trouble = self.trouble.get(name)
        if trouble == "hang":
            self.stopped.wait(60)
            handler.close_connection = True
            return
        if isinstance(trouble, int):
            handler.answer(trouble, b"trouble")
            return
        if self.credentials is not None and json.loads(headers["x-bkapi-authorization"]) != self.credentials:
            handler.answer(401, b"unknown credentials")
            return
        with self._lock:
            code = self.code or (1010033 if self._refuses(name, body) else 0)
            data = getattr(self, f"_{name}")(body) if code == 0 else {}
        if trouble == "lose":
            handler.close_connection = True
            return
        handler.answer(200, json.dumps({"code": code, "message": "refused by GSE", "data": data}).encode())

    def _refuses(self, name: str, body: dict[str, Any]) -> bool:
        if name != "async_transfer_file":
            return False
        return any(_agent(agent)[0] in self.refused for task in body["tasks"] for agent in task["target"]["agents"])

    def _async_transfer_file(self, body: dict[str, Any]) -> dict[str, Any]:
        task_id = f"gse-{len(self.transfers) + 1}"
        agents = [_agent(agent) for task in body["tasks"] for agent in task["target"]["agents"]]
        self.transfers[task_id] = {agent: {"error_code": 115, "error_msg": "", "progress": 0} for agent in agents}
        return {"result": {"task_id": task_id}}

    def _get_transfer_file_result(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [*self.extra_rows]
        task_id = body["task_id"]
        upload = self.uploads.get(task_id, {"error_code": 0, "error_msg": ""})
        rows.append({**upload, "content": {"type": "upload", "source_agent_id": "source", "mode": 1}})
        for (agent_id, container_id), result in self.transfers[task_id].items():
            content: dict[str, Any] = {"type": "download", "dest_agent_id": agent_id, "dest_container_id": container_id}
            content |= {"progress": result["progress"], "status": 0, **result.get("figures", {})}
            row = {name: value for name, value in result.items() if name != "figures"}
            rows.append({**row, "content": content})
        return {"version": "2.0", "result": rows}

    def _async_terminate_transfer_file(self, body: dict[str, Any]) -> dict[str, Any]:
        self.terminated.append((body["task_id"], [_agent(agent) for agent in body["agents"]]))
        return {"result": {"task_id": body["task_id"]}}


def _agent(agent: dict[str, str]) -> Agent:
    return agent["bk_agent_id"], agent.get("bk_container_id", "")


@contextmanager
def gse_server() -> Iterator[GseServer]:
    server = GseServer()
    with serve(server.answer) as port:
        server.base_url = f"http://127.0.0.1:{port}"
        try:
            yield server
        finally:
            server.stopped.set()
