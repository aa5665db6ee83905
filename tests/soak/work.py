"""The work of a soak: one thread for each capability asks for more as soon as what it asked for before has ended."""

from __future__ import annotations

import itertools
import os
import pwd
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from tests.soak.caller import Caller
from tests.soak.hosts import Disks, Host, content_of
from tests.soak.ledger import ANSWERS, BATCH, EXPORT, JOB, REQUEST, TASK, Asked, Ledger
from tests.soak.outside import Outside

USER = pwd.getpwuid(os.getuid()).pw_name
# Open records of one capability, at most: a slow machine gets less work, not a longer end.
_MOST_OPEN = 4
CANCELLED = "a request that was cancelled before it ran never runs"
_SIZES = {"/srv/large.bin": 3 << 20, "/srv/small.txt": 2_000, "/srv/other.txt": 200}
RELEASE_FILES = ("/etc/app/one.conf", "/etc/app/two.conf")


class Work:
    def __init__(self, caller: Caller, world: Outside, hosts: list[Host], disks: Disks, seed: int) -> None:
        self.caller = caller
        self.world = world
        self.hosts = hosts
        self.disks = disks
        self.seed = seed
        self.ledger: Ledger = caller.ledger
        # The version of each path on hosts that was asked for last, by host.
        self.wanted: dict[tuple[str, str], int] = {}
        self.revision = 0
        self._version = 0
        self._release_version = 0
        self._biz_id = ""
        self._small = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def callback(self) -> str:
        return f"http://127.0.0.1:{self.world.receiver_port}/hook"

    # --- distribution

    def distribute(self, rng: random.Random, hosts: list[Host] | None = None, path: str = "") -> None:
        """A new version of a file to some hosts, or to these."""
        path = path or rng.choice(list(_SIZES))
        self._version += 1
        version, content = self._version, content_of(self.seed, path, self._version, _SIZES[path])
        self.disks.knows(path, version, content)
        folder, name = path.rsplit("/", 1)
        body: dict[str, Any] = {
            "biz_id": 2,
            "app_id": 3,
            "file_path": path,
            "file_name": name,
            "target_user": USER,
            "target_file_dir": folder,
            "file_signature": self.caller.store(path, content),
            "callback": self.callback,
        }
        chosen = hosts or rng.sample(self.hosts, rng.randint(1, len(self.hosts)))
        if rng.random() < 0.2:
            body["waves"] = [{"percent": 50, "wait_s": 0}]
        targets = [{"agent_id": host.name} for host in chosen]
        answer = self.caller.post("/v1/downloads/batch", body | {"targets": targets})
        for host in chosen:
            self.wanted[host.name, path] = version
        for task in answer["tasks"]:
            task_id = str(task["task_id"])
            about = {"host": task["agent_id"], "path": path, "version": version, "callback": True}
            self.ledger.accept(Asked(TASK, task_id, f"/v1/downloads/{task_id.rsplit(':', 1)[1]}", about))
        job_id = str(answer["job_id"])
        if job_id not in self.ledger.asked:
            self.ledger.accept(Asked(JOB, job_id, f"/v1/jobs/{quote(job_id, safe='')}"))

    # --- exports

    def export(self, rng: random.Random) -> None:
        count, form = rng.choice((1, 250, 3_000, 20_000)), rng.choice(("csv", "excel"))
        path = f"/rows/{uuid.UUID(int=rng.getrandbits(128))}"
        self.world.tables[path] = [{"id": number, "name": f"名字{number}"} for number in range(count)]
        body = {
            "name": "soak",
            "type": form,
            "source_url": f"http://127.0.0.1:{self.world.rows_port}{path}",
            "callback": self.callback,
            "parallel": rng.choice((1, 2, 4)),
        }
        task_id = str(self.caller.post("/v1/task", body)["task_id"])
        about = {"rows": count, "type": form, "callback": True}
        self.ledger.accept(Asked(EXPORT, task_id, f"/v1/task?task_id={task_id}", about))

    # --- batches

    def batch(self, rng: random.Random) -> None:
        if not self._biz_id:
            url = f"http://127.0.0.1:{self.world.business_port}"
            entry = {"name": "soak", "process_url": f"{url}/item", "process_stop_url": f"{url}/stopped"}
            self._biz_id = str(self.caller.post("/v1/biz", entry)["biz_id"])
        total, rate = rng.choice((20, 100, 300)), rng.choice((10, 30, 60))
        if self._small:
            total, rate = min(total, 100), max(rate, 30)
        body = {
            "biz_id": self._biz_id,
            "name": "soak",
            "total": total,
            "rate": rate,
            "retries": 20,
            "retry_delay": 0.5,
            "runners": rng.choice((1, 1, 2)),
        }
        batch_id = str(self.caller.post("/v1/batches", body)["batch_id"])
        about = {"total": total, "rate": rate, "callback": True}
        asked = Asked(BATCH, batch_id, f"/v1/batches/{batch_id}", about, goes_on=True)
        self.ledger.accept(asked)
        # 409: an earlier try of this call was not answered, but done.
        self.caller.post(f"/v1/batches/{batch_id}/start", allowed=(409,))
        if rng.random() < 0.4:
            self._stop.wait(rng.uniform(0.5, total / rate))
            self.caller.post(f"/v1/batches/{batch_id}/stop", allowed=(409,))
            if self._wait(asked.path, {"stopped", "finished"}) == "stopped":
                self.ledger.count("batches stopped and started again")
                self.caller.post(f"/v1/batches/{batch_id}/start", allowed=(409,))
                # What a caller reads until the start is seen must not count as the end.
                asked.states.append(self._wait(asked.path, {"waiting_biz", "running", "stopping", "finished"}))
        asked.goes_on = False

    def _wait(self, path: str, states: set[str]) -> str:
        while (found := str(self.caller.get(path)["status"])) not in states:
            time.sleep(0.3)
        return found

    # --- ingest and the queue

    def ingest(self, rng: random.Random) -> None:
        path = f"/in/{uuid.UUID(int=rng.getrandbits(128))}"
        missing = rng.random() < 0.1
        body = rng.randbytes(rng.choice((0, 100, 60_000, 9 << 20)))
        url = self.world.files.url(path) if missing else self.world.host(path, body)
        order: dict[str, Any] = {"biz_id": 1, "app_id": 2, "file_path": path, "source_url": url}
        order["priority"] = rng.randint(1, 10)
        answer = self.caller.post("/v1/files", order)
        request_id = str(answer["request_id"])
        about = {"body": None if missing else body, "file_id": answer["file_id"], "cancelled": False, "path": path}
        asked = self.ledger.accept(Asked(REQUEST, request_id, f"/v1/requests/{request_id}", about))
        if rng.random() < 0.15:
            asked.about["cancelled"] = self._cancel(asked)

    def _cancel(self, asked: Asked) -> bool:
        """Whether the request is cancelled. One is enough of several tries of which only the last was answered."""
        status, _ = self.caller.call("POST", f"{asked.path}/cancel", allowed=(409,))
        return status < 300 or self.caller.get(asked.path)["status"] == "cancelled"

    def hold(self, rng: random.Random) -> None:
        """Requests in a paused channel: some are cancelled there, and then must never run."""
        self.caller.admin("POST", "/v1/queue/capacity", json={"held": 1})
        self.caller.admin("POST", "/v1/queue/pause", json={"scope": "held"})
        for number in range(3):
            path = f"/held/{uuid.UUID(int=rng.getrandbits(128))}"
            body = rng.randbytes(500)
            order = {"biz_id": 1, "app_id": 2, "file_path": path, "source_url": self.world.host(path, body)}
            answer = self.caller.post("/v1/files", order | {"channel": "held"})
            request_id = str(answer["request_id"])
            about = {"body": body, "file_id": answer["file_id"], "cancelled": False, "path": path}
            asked = self.ledger.accept(Asked(REQUEST, request_id, f"/v1/requests/{request_id}", about))
            if number == 0:
                asked.about["cancelled"] = asked.about["never"] = self._cancel(asked) and not self.world.seen(path)
        self.caller.admin("POST", "/v1/queue/resume", json={"scope": "held"})

    def steer(self, rng: random.Random) -> None:
        """Changes capacities, pauses a channel for a moment, puts a waiting request first."""
        channel = rng.choice(("no_cookie", "export", "batch"))
        self.caller.admin("POST", "/v1/queue/capacity", json={channel: rng.randint(1, 4)})
        if rng.random() < 0.5:
            self.caller.admin("POST", "/v1/queue/pause", json={"scope": channel})
            self._stop.wait(rng.uniform(0.5, 3))
            self.caller.admin("POST", "/v1/queue/resume", json={"scope": channel})
        if waiting := self.ledger.open(REQUEST):
            path = f"/v1/requests/{rng.choice(waiting).record_id}/prioritize"
            self.caller.call("POST", path, json={"priority": 1}, allowed=(404, 409))

    # --- releases

    def release(self, rng: random.Random) -> None:
        """A revision with two files, which belong together."""
        self._release_version += 1
        files = []
        for path in RELEASE_FILES:
            content = content_of(self.seed, path, self._release_version, 300)
            self.disks.knows(path, self._release_version, content)
            signature = self.caller.store(path, content)
            folder = path.rsplit("/", 1)[0]
            files.append({"file_path": path, "signature": signature, "target_file_dir": folder, "target_user": USER})
        body: dict[str, Any] = {"files": files, "targets": {"agents": [host.name for host in self.hosts]}}
        if rng.random() < 0.3:
            body["waves"] = [{"percent": 50, "wait_s": 1}]
        answer = self.caller.call("PUT", "/v1/releases/app", json=body)[1]
        if answer["revision"] < self.revision:
            self.ledger.breaks("revisions of a release rise", f"{self.revision}, then {answer['revision']}")
        self.revision = int(answer["revision"])
        self.ledger.count("revisions released")

    # --- threads

    def start(self, pause: float = 2.0, *, small: bool = False) -> None:
        """Begins. `small`: a few of everything and no more, instead of going on until `stop`."""
        self._small = small
        for name, do, kinds, pauses, few in (
            ("distribution", self.distribute, (JOB,), 1, 2),
            ("exports", self.export, (EXPORT,), 1, 2),
            ("batches", self.batch, (BATCH,), 1, 1),
            ("batches too", self.batch, (BATCH,), 3, 1),
            ("ingest", self.ingest, (REQUEST,), 1, 3),
            ("held", self.hold, (REQUEST,), 8, 1),
            ("queue", self.steer, (), 3, 2),
            ("releases", self.release, (), 10, 1),
        ):
            rng, times = random.Random(f"{name} {self.seed}"), range(few) if small else itertools.count()
            words = (name, do, kinds, pauses * pause, rng, times)
            thread = threading.Thread(target=self._loop, args=words, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _loop(
        self,
        name: str,
        do: Callable[[random.Random], None],
        kinds: tuple[str, ...],
        seconds: float,
        rng: random.Random,
        times: Iterable[int],
    ) -> None:
        for _ in times:
            while not self._stop.is_set() and any(len(self.ledger.open(kind)) >= _MOST_OPEN for kind in kinds):
                self._stop.wait(0.3)
            if self._stop.is_set():
                return
            try:
                do(rng)
            except Exception as error:
                self.ledger.breaks(ANSWERS, f"{name}: {error!r}")
            self._stop.wait(rng.uniform(0.2, seconds))

    def at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def began_everything(self) -> bool:
        """Whether there was work of each kind. A machine that is busy with other things needs longer for that."""
        return all(self.ledger.of(kind) for kind in (JOB, EXPORT, BATCH, REQUEST)) and self.revision > 0

    def stop(self) -> None:
        """No more work. Waits until every thread has finished what it had begun."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def last_versions(self) -> None:
        """Undoes what was steered, and asks for one more version of everything on every host."""
        capacities = dict.fromkeys(("no_cookie", "export", "batch", "held"), 4)
        self.caller.admin("POST", "/v1/queue/capacity", json=capacities)
        self.caller.admin("POST", "/v1/queue/resume", json={"scope": "all"})
        for channel in capacities:
            self.caller.admin("POST", "/v1/queue/resume", json={"scope": channel})
        rng = random.Random(f"last {self.seed}")
        for path in _SIZES:
            self.distribute(rng, self.hosts, path)
        self.release(rng)
        for host in self.hosts:
            for path in RELEASE_FILES:
                self.wanted[host.name, path] = self._release_version
