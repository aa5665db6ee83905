"""The checks of `tidegate doctor`: uses each feature of a deployed stack once, then cleans up.

The checks create the project `doctor`. It stays for the next run, because projects cannot be deleted.

Callbacks, exports from a URL and batches are not tested. They call a server of the user, and the stack may not be able
to reach this machine."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tidegate_client.client import Client
from tidegate_client.compat import moment
from tidegate_client.errors import ApiError, Conflict, NotFound, TidegateError, TransferError, without_queries
from tidegate_client.uploads import Journal, send_parts, sha256_of
from tidegate_client.watching import NoSocketLibrary, Socket

PROJECT = "doctor"
# Quotas that had no default limit in older versions, and how many projects are checked at most.
LIMITS = (
    "stored_bytes",
    "queued",
    "running",
    "requests_per_s",
    "export_schedules",
    "batch_schedules",
    "runner_hours_per_day",
    "egress_bytes_per_day",
    "targets_per_day",
    "outgoing_calls_per_day",
)
MOST_PROJECTS = 200
LONGEST_RUN = timedelta(hours=1)
PLACE: dict[str, Any] = {"biz_id": 0, "app_id": 0}


class CheckFailed(TidegateError):
    """The stack answered, but not as expected."""


def _require(condition: bool, failure: str) -> None:
    """Raises CheckFailed unless the condition holds. Unlike `assert`, this also works with `python -O`."""
    if not condition:
        raise CheckFailed(failure)


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    ok: bool
    detail: str
    seconds: float


@dataclass
class Smoke:
    """The checks of `tidegate doctor`. `admin` has an admin key; `connect` creates a client with another key."""

    admin: Client
    connect: Callable[[str], Client]
    folder: Path
    seconds: float = 180.0
    project_id: str = ""
    # Concurrent runs share the project, so each uses its own host and paths.
    name: str = field(default_factory=lambda: f"doctor-{secrets.token_hex(4)}")
    cleanup: ExitStack = field(default_factory=ExitStack)
    in_use: list[str] = field(default_factory=list)

    def run(self) -> Iterator[Finding]:
        """Runs the checks up to the first failure, then cleans up; yields each result."""
        try:
            for check in (
                self.reach,
                self.project,
                self.grants,
                self.quotas,
                self.upload,
                self.parts,
                self.request,
                self.export,
                self.websocket,
                self.distribute,
            ):
                finding = self._finding(check.__name__, check)
                yield finding
                if not finding.ok:
                    break
        finally:
            yield self._finding("clean_up", self.clean_up)

    def _finding(self, name: str, check: Callable[[], str]) -> Finding:
        began = time.monotonic()
        try:
            detail, ok = check(), True
        except (TidegateError, KeyError, OSError) as error:
            detail, ok = f"{type(error).__name__}: {without_queries(error)}", False
        return Finding(name, ok, detail, round(time.monotonic() - began, 2))

    def reach(self) -> str:
        self.admin.operations.health()
        return f"{self.admin.http.api_url} answers"

    def grants(self) -> str:
        """Returns which projects cannot send files because they have no grant for GSE."""
        if not self._sends_through_gse():
            return "not needed: hosts run tidegate agent, which has --allow-dir and --allow-user"
        others = [one for one in self.admin.projects.list() if one.name != PROJECT]
        without = [one.name for one in others if not all(one.gse.values())]
        if not without:
            return "every project has a grant for GSE"
        return (
            f"no grant for GSE, so they cannot send files: {', '.join(without)}; tidegate project update PROJECT "
            "--gse-target … --gse-dir … --gse-user …"
        )

    def _sends_through_gse(self) -> bool:
        return bool(self.admin.operations.system()["parameters"].get("TransferEngine") == "gse")

    def project(self) -> str:
        try:
            self.project_id, state = self.admin.projects.create(PROJECT).project_id, "created"
        except ApiError as error:
            if error.code != "project_exists":
                raise
            self.project_id, state = self._existing_project(), "of an earlier run"
        self.user = self.connect(self._key("read", "write"))
        self.agent = self.connect(self._key("agent", agent_id=self.name))
        self._delete_leftovers()
        return f"{PROJECT}, {state}, with two new keys"

    def quotas(self) -> str:
        """Returns which projects have a quota without a limit.

        Never fails, because an operator may have chosen no limit."""
        unlimited, seen = [], 0
        for project in self.admin.projects.list():
            seen += 1
            record = self.admin.projects.get(project.project_id)
            missing = [name for name in LIMITS if record.quotas.get(name) is None]
            if missing:
                unlimited.append(f"{project.name} ({', '.join(missing)})")
            if seen >= MOST_PROJECTS:
                break
        if not unlimited:
            return f"all quotas of {seen} projects are finite"
        advice = "`tidegate project update ID --quota all=none` sets the defaults"
        return f"without a limit, because they are older than the defaults: {'; '.join(unlimited[:10])}: {advice}"

    def _existing_project(self) -> str:
        for project in self.admin.projects.list():
            if project.name == PROJECT:
                return project.project_id
        raise CheckFailed(f"the API says that there is a project {PROJECT}, but does not list it")

    def _delete_leftovers(self) -> None:
        """Deletes files that earlier runs could not delete. Files of a run that may still be going on are kept."""
        for file in list(self.user.files.list()):
            if datetime.now(timezone.utc) - moment(file.created_at) > LONGEST_RUN:
                with suppress(Conflict, NotFound):
                    self.user.files.delete(file.file_id)

    def _key(self, *scopes: str, agent_id: str | None = None) -> str:
        created = self.admin.keys.create(self.project_id, list(scopes), agent_id=agent_id)
        self.cleanup.callback(self.admin.keys.delete, created["key_id"])
        return created.key

    def upload(self) -> str:
        source = self._content("one.bin", 300_000)
        self.file = self.user.files.put(source, **PLACE, file_path=f"/{self.name}/one.bin")
        self._delete_at_end(self.file["file_id"])
        downloaded = self.folder / "back.bin"
        self.user.files.fetch(self.file["file_id"], downloaded)
        _require(
            downloaded.read_bytes() == source.read_bytes(),
            "the file that was downloaded differs from the one that was uploaded",
        )
        return "300 kB uploaded, verified and downloaded again"

    def parts(self) -> str:
        source = self._content("parts.bin", 6_000_000)
        size, signature = source.stat().st_size, sha256_of(source)
        target = {**PLACE, "file_path": f"/{self.name}/parts.bin"}
        created = self.user.files.create(**target, size=size, signature=signature, multipart=True)
        file_id = created["file_id"]
        self._delete_at_end(file_id)
        journal = Journal.for_upload(source, target)
        journal.begin(file_id, signature, created["upload"]["part_size"])
        pool = self.user.http.pool
        sent = send_parts(pool, source, journal, lambda numbers: self.user.files.parts(file_id, numbers))
        journal.forget()
        self.user.files.complete(file_id, sent)
        self.user.files.wait(file_id, timeout=self.seconds)
        return f"6 MB in {len(sent)} part(s), verified"

    def request(self) -> str:
        created = self.user.requests.create("check", {"file_id": self.file["file_id"]})
        ended = self._wait_until(
            lambda: self.user.requests.get(created["request_id"]), "completed", "failed", "cancelled"
        )
        _require(ended["status"] == "completed", f"the request ended {ended['status']}: {ended.get('error')}")
        return "admitted, run by its state machine, completed"

    def export(self) -> str:
        rows = [{"id": number, "name": "潮"} for number in range(50)]
        template = {"id": "Id", "name": "Name"}
        task_id = self.user.exports.submit({"name": "doctor", "source_data": rows, "template": template})["task_id"]
        self.task_id = task_id
        self.cleanup.callback(self.user.exports.delete, [task_id])
        ended = self._wait_until(lambda: self.user.exports.get(task_id), "completed", "failed", "cancelled")
        _require(ended["status"] == "completed", f"the export ended {ended['status']}: {ended.get('failed_reason')}")
        self.user.exports.fetch(task_id, self.folder / "rows.csv")
        lines = (self.folder / "rows.csv").read_bytes().count(b"\n")
        _require(lines >= 50, f"the CSV has {lines} lines, expected were at least 50")
        return "50 rows as CSV"

    def websocket(self) -> str:
        """Watches a record that has ended. The API sends the record's state at once, over API Gateway's WebSocket."""
        try:
            socket = Socket(self.user, None)
        except NoSocketLibrary:
            return "skipped: websocket-client is not installed"
        try:
            socket.watch([self.task_id])
            deadline = time.monotonic() + self.seconds
            while self.task_id not in str(socket.receive(5)):
                _require(
                    time.monotonic() < deadline, f"no WebSocket message about {self.task_id} within {self.seconds:g} s"
                )
        finally:
            socket.close()
        return "connected with a ticket, received the state of the export"

    def distribute(self) -> str:
        if self._sends_through_gse():
            return "skipped: this process can stand in for an agent, but not for a host of GSE"
        signature = str(self.file["signature"])
        task = self.user.downloads.submit(
            **PLACE,
            file_path=f"/{self.name}/one.bin",
            file_name="one.bin",
            target_agent_id=self.name,
            target_user="root",
            target_file_dir="/tmp",  # noqa: S108, nothing is written: this process acts as the agent
            file_signature=signature,
        )
        deadline = time.monotonic() + self.seconds
        while not (transfers := self.agent.agents.transfers(self.name, wait=5)):
            _require(time.monotonic() < deadline, f"no transfer for {self.name} within {self.seconds:g} s")
        # The host's first poll has added it to the project's hosts.
        self.cleanup.callback(self._delete_host)
        response = self.agent.http.pool.request("GET", transfers[0]["url"])
        _require(
            hashlib.sha256(response.data).hexdigest() == signature,
            f"the agent received wrong content (HTTP {response.status})",
        )
        name = {"transfer_id": transfers[0]["transfer_id"], "container_id": transfers[0]["container_id"]}
        self.agent.agents.report(self.name, [{**name, "error_code": 0}])  # type: ignore[typeddict-item]
        ended = self._wait_until(lambda: self.user.downloads.get(task["task_id"]), "Success", "Failed", "Timeout")
        _require(ended["status"] == "Success", f"the Task ended {ended['status']}: {ended.get('error_msg')}")
        return "window, Job, transfer, report, Success"

    def clean_up(self) -> str:
        self.cleanup.close()
        later = (
            f"; a Job may still need {', '.join(self.in_use)}: a run after an hour deletes it" if self.in_use else ""
        )
        return f"files, export, host and keys are deleted{later}"

    def _content(self, name: str, size: int) -> Path:
        path = self.folder / name
        path.write_bytes(secrets.token_bytes(size))
        return path

    def _delete_host(self) -> None:
        with suppress(NotFound):
            self.user.agents.delete(self.name)

    def _delete_at_end(self, file_id: str) -> None:
        def delete() -> None:
            try:
                self.user.files.delete(file_id)
            except ApiError as error:
                if error.code != "in_use":
                    raise
                self.in_use.append(file_id)

        self.cleanup.callback(delete)

    def _wait_until(self, read: Callable[[], Any], *ends: str) -> Any:
        deadline = time.monotonic() + self.seconds
        while (record := read())["status"] not in ends:
            if time.monotonic() > deadline:
                raise TransferError(f"the status is still {record['status']} after {self.seconds:g} s")
            time.sleep(0.5)
        return record


def examine(admin: Client, connect: Callable[[str], Client], *, seconds: float = 180.0) -> Iterator[Finding]:
    """Runs the checks of `tidegate doctor` and yields the result of each.
    `connect` creates a client with another key."""
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as folder:
        yield from Smoke(admin, connect, Path(folder), seconds).run()
