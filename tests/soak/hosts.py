"""Real agents on hosts that are folders, and one who looks at their disks all the time."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from local.demo.swarm import free_ports
from tests.soak.ledger import Ledger
from tests.support.deployed import DeployedProject

NEWER = "newer content is never replaced by older, and no part of a file is ever seen"


class Host:
    def __init__(self, project: DeployedProject, home: Path, name: str, peer_port: int) -> None:
        self.name = name
        self.root = home / name
        self.clock = home / f"{name}.clock"
        self.log = home / f"{name}.log"
        self._home = home
        self._api_url = project.cloud.api_url
        self._key = project.agent_key(name)
        self._peer_port = peer_port
        self._process: subprocess.Popen[bytes] | None = None
        (self.root / "srv").mkdir(parents=True)
        (self.root / "etc").mkdir()
        self.clock.write_text("0")

    def start(self) -> None:
        words = ["agent", "--agent-id", self.name, "--root", str(self.root), "--wait", "5"]
        words += ["--state-dir", str(self._home / f"{self.name}.state")]
        words += ["--allow-dir", "/srv", "--allow-dir", "/etc", "--allow-user", "*"]
        if self._peer_port:
            words += ["--peer-listen", f"127.0.0.1:{self._peer_port}", "--site", "here"]
        environment = os.environ | {
            "HOME": str(self._home),
            "TIDEGATE_API_URL": self._api_url,
            "TIDEGATE_KEY": self._key,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.agent", str(self.clock), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def set_clock(self, seconds: float) -> None:
        self.clock.write_text(str(seconds))

    def file(self, path: str) -> Path:
        return self.root / path[1:]


def content_of(seed: int, path: str, version: int, size: int) -> bytes:
    """The bytes of a version of a file, the same in every run with this seed."""
    head = f"version {version} of {path}\n".encode()
    return head + random.Random(f"{seed} {path} {version}").randbytes(size)


class Disks:
    """Reads every watched file again and again. Knows which versions there are by their digests."""

    def __init__(self, hosts: list[Host], ledger: Ledger) -> None:
        self._hosts = hosts
        self._ledger = ledger
        self._lock = threading.Lock()
        # Of each path: the version by its digest.
        self._versions: dict[str, dict[str, int]] = {}
        self.now: dict[tuple[str, str], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def knows(self, path: str, version: int, content: bytes) -> None:
        with self._lock:
            self._versions.setdefault(path, {})[hashlib.sha256(content).hexdigest()] = version

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(0.2)

    def look(self) -> None:
        with self._lock:
            known = {path: dict(versions) for path, versions in self._versions.items()}
        for host in self._hosts:
            for path, versions in known.items():
                try:
                    found = hashlib.sha256(host.file(path).read_bytes()).hexdigest()
                except FileNotFoundError:
                    continue
                self._compare(host.name, path, versions.get(found))

    def _compare(self, host: str, path: str, version: int | None) -> None:
        before = self.now.get((host, path), 0)
        if version is None:
            self._ledger.breaks(NEWER, f"{host}:{path} has content that nobody asked for")
        elif version < before:
            self._ledger.breaks(NEWER, f"{host}:{path} went from version {before} to {version}")
        elif version > before:
            self._ledger.count("files switched on hosts")
            self._ledger.moves()
        if version is not None:
            self.now[host, path] = version

    def __enter__(self) -> Disks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def make_hosts(project: DeployedProject, home: Path, count: int) -> list[Host]:
    """Hosts of which the last has no peers."""
    ports = [*free_ports(count - 1), 0]
    return [Host(project, home, f"soak-{number}", port) for number, port in enumerate(ports)]
