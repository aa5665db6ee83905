"""`tidegate doctor`: a smoke test of a deployed stack that uses each feature once and cleans up.

The stack need not be able to reach this machine. So callbacks, exports by URL and batches, which call a server of the
user, are not tested.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tidegate_client.client import Client
from tidegate_client.content import sha256_of
from tidegate_client.errors import ApiError, TidegateError, TransferError
from tidegate_client.multipart import Journal, send_parts
from tidegate_client.socket import NoSocketLibrary, Socket

HOST = "doctor-host"
PLACE: dict[str, Any] = {"biz_id": 0, "app_id": 0}


class CheckFailed(TidegateError):
    """The stack answered, but not as it must."""


def _require(holds: bool, otherwise: str) -> None:
    """Unlike `assert`, checked also by `python -O`."""
    if not holds:
        raise CheckFailed(otherwise)


class Finding(NamedTuple):
    check: str
    ok: bool
    detail: str
    seconds: float


@dataclass
class Smoke:
    """`admin` is a client with an admin key; `connect` makes one with another key."""

    admin: Client
    connect: Callable[[str], Client]
    folder: Path
    seconds: float = 180.0
    project_id: str = ""
    cleanup: ExitStack = field(default_factory=ExitStack)
    left: list[str] = field(default_factory=list)

    def run(self) -> Iterator[Finding]:
        """Runs the checks up to the first failure, then cleans up."""
        try:
            for check in (
                self.reach,
                self.project,
                self.upload,
                self.parts,
                self.request,
                self.export,
                self.websocket,
                self.distribute,
            ):
                finding = self._tried(check.__name__, check)
                yield finding
                if not finding.ok:
                    break
        finally:
            yield self._tried("clean_up", self.clean_up)

    def _tried(self, name: str, check: Callable[[], str]) -> Finding:
        began = time.monotonic()
        try:
            detail, ok = check(), True
        except (TidegateError, KeyError, OSError) as error:
            detail, ok = f"{type(error).__name__}: {error}", False
        return Finding(name, ok, detail, round(time.monotonic() - began, 2))

    def reach(self) -> str:
        self.admin.operations.health()
        return f"{self.admin.http.api_url} answers"

    def project(self) -> str:
        name = f"doctor-{secrets.token_hex(4)}"
        self.project_id = self.admin.projects.create(name)["project_id"]
        self.user = self.connect(self._key("read", "write"))
        self.agent = self.connect(self._key("agent", agent_id=HOST))
        return f"{name} with two keys"

    def _key(self, *scopes: str, agent_id: str | None = None) -> str:
        made = self.admin.keys.create(self.project_id, list(scopes), agent_id=agent_id)
        self.cleanup.callback(self.admin.keys.delete, made["key_id"])
        return made.key

    def upload(self) -> str:
        source = self._content("one.bin", 300_000)
        self.file = self.user.files.put(source, **PLACE, file_path="/doctor/one.bin")
        self._forget(self.file["file_id"])
        back = self.folder / "back.bin"
        self.user.files.fetch(self.file["file_id"], back)
        _require(
            back.read_bytes() == source.read_bytes(),
            "the file that was downloaded differs from the one that was uploaded",
        )
        return "300 kB up, verified, and down again"

    def parts(self) -> str:
        source = self._content("parts.bin", 6_000_000)
        size, signature = source.stat().st_size, sha256_of(source)
        target = {**PLACE, "file_path": "/doctor/parts.bin"}
        made = self.user.files.create(**target, size=size, signature=signature, multipart=True)
        file_id = made["file_id"]
        self._forget(file_id)
        journal = Journal.of(source, target)
        journal.begin(file_id, signature, made["upload"]["part_size"])
        pool = self.user.http.pool
        sent = send_parts(pool, source, journal, lambda numbers: self.user.files.parts(file_id, numbers))
        journal.forget()
        self.user.files.complete(file_id, sent)
        self.user.files.wait(file_id, timeout=self.seconds)
        return f"6 MB in {len(sent)} part(s), verified"

    def request(self) -> str:
        made = self.user.requests.create("check", {"file_id": self.file["file_id"]})
        ended = self._until(lambda: self.user.requests.get(made["request_id"]), "completed", "failed", "cancelled")
        _require(ended["status"] == "completed", f"the request ended {ended['status']}: {ended.get('error')}")
        return "admitted, run by its state machine, completed"

    def export(self) -> str:
        rows = [{"id": number, "name": "潮"} for number in range(50)]
        template = {"id": "Id", "name": "Name"}
        task_id = self.user.exports.submit({"name": "doctor", "source_data": rows, "template": template})["task_id"]
        self.task_id = task_id
        self.cleanup.callback(self.user.exports.delete, [task_id])
        ended = self._until(lambda: self.user.exports.get(task_id), "completed", "failed", "cancelled")
        _require(ended["status"] == "completed", f"the export ended {ended['status']}: {ended.get('failed_reason')}")
        self.user.exports.fetch(task_id, self.folder / "rows.csv")
        _require((self.folder / "rows.csv").read_bytes().count(b"\n") >= 50, "rows are missing")
        return "50 rows as CSV"

    def websocket(self) -> str:
        """Watches a record that has ended: the API answers at once, through API Gateway's connection."""
        try:
            socket = Socket(self.user, None)
        except NoSocketLibrary:
            return "skipped: websocket-client is not installed"
        try:
            socket.watch([self.task_id])
            deadline = time.monotonic() + self.seconds
            while self.task_id not in str(socket.receive(5)):
                _require(time.monotonic() < deadline, "no message came about a record that has ended")
        finally:
            socket.close()
        return "connected with a ticket, received the state of the export"

    def distribute(self) -> str:
        signature = str(self.file["signature"])
        task = self.user.downloads.submit(
            **PLACE,
            file_path="/doctor/one.bin",
            file_name="one.bin",
            target_agent_id=HOST,
            target_user="root",
            target_file_dir="/tmp",  # noqa: S108, nothing is written: this process plays the agent
            file_signature=signature,
        )
        deadline = time.monotonic() + self.seconds
        while not (given := self.agent.agents.transfers(HOST, wait=5)):
            _require(time.monotonic() < deadline, "the agent's inbox stayed empty")
        got = self.agent.http.pool.request("GET", given[0]["url"])
        _require(
            hashlib.sha256(got.data).hexdigest() == signature, f"the agent received wrong content (HTTP {got.status})"
        )
        name = {"transfer_id": given[0]["transfer_id"], "container_id": given[0]["container_id"]}
        self.agent.agents.report(HOST, [{**name, "error_code": 0}])  # type: ignore[typeddict-item]
        ended = self._until(lambda: self.user.downloads.get(task["task_id"]), "Success", "Failed", "Timeout")
        _require(ended["status"] == "Success", f"the Task ended {ended['status']}: {ended.get('error_msg')}")
        return "window, Job, transfer, report, Success"

    def clean_up(self) -> str:
        self.cleanup.close()
        left = f"; still in use by a Job, delete them later: {', '.join(self.left)}" if self.left else ""
        return f"files, export and keys are deleted{left}"

    def _content(self, name: str, size: int) -> Path:
        path = self.folder / name
        path.write_bytes(secrets.token_bytes(size))
        return path

    def _forget(self, file_id: str) -> None:
        def delete() -> None:
            try:
                self.user.files.delete(file_id)
            except ApiError as error:
                if error.code != "in_use":
                    raise
                self.left.append(file_id)

        self.cleanup.callback(delete)

    def _until(self, read: Callable[[], Any], *ends: str) -> Any:
        deadline = time.monotonic() + self.seconds
        while (seen := read())["status"] not in ends:
            if time.monotonic() > deadline:
                raise TransferError(f"still {seen['status']} after {self.seconds:g} s")
            time.sleep(0.5)
        return seen


def examine(admin: Client, connect: Callable[[str], Client], *, seconds: float = 180.0) -> Iterator[Finding]:
    """The findings, one for each check; `connect` makes a client with another key."""
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as folder:
        yield from Smoke(admin, connect, Path(folder), seconds).run()
