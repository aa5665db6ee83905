"""A fleet of hosts in several processes on this machine, each with its own address, and its results."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.patience import idle_clock
from tests.support.swarm.lab import CountingOrigin, Placement, SwarmTransfers
from tests.support.template import ROOT
from tidegate_client.swarm.port import load_identity

PORT = 7471


@dataclass
class Behaviour:
    """`blocked`: peers get no answer from its address. `dead`: it never starts. Others: see the worker."""

    kind: str = "honest"
    slow: float = 1.0

    @property
    def gets_the_file(self) -> bool:
        return self.kind in ("honest", "blocked")


@dataclass
class FleetRun:
    hosts: int
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    wall: float = 0.0
    egress: float = 0.0

    @property
    def seconds(self) -> list[float]:
        return sorted(result["seconds"] for result in self.results.values())

    @property
    def received(self) -> int:
        figures = [result["figures"] for result in self.results.values() if result["figures"]]
        return sum(figure["peer_bytes"] + figure["origin_bytes"] for figure in figures)


class SwarmFleet:
    def __init__(
        self,
        home: Path,
        origin: CountingOrigin,
        behaviours: Sequence[Behaviour],
        *,
        rate: float | None,
        spread: float,
        processes: int = 5,
        direct: bool = False,
        old: bytes | None = None,
        pythons: Sequence[str] = (sys.executable,),
        lead: float = 3.0,
        patience: float | None = None,
    ) -> None:
        """`old` is the content that every host has at the target path before the Job. `pythons`: which the processes
        use in turn. `lead`: seconds until the first host starts, which the processes need to start themselves.
        `patience`: seconds without a peer's piece after which a host goes to S3, else the product's."""
        self.home = home
        self.origin = origin
        self.names = [f"host-{n:02d}" for n in range(len(behaviours))]
        self.behaviours = dict(zip(self.names, behaviours, strict=True))
        self._old = old
        self._pythons = itertools.cycle(pythons)
        self._lead = lead
        self._patience = patience
        self._rate, self._spread, self._processes, self._direct = rate, spread, processes, direct
        self._running: list[subprocess.Popen[str]] = []
        self._specs: list[Path] = []
        self._readers: list[threading.Thread] = []
        self._began = 0.0
        self.run = FleetRun(len(behaviours))

    def address(self, name: str) -> tuple[str, int]:
        number = self.names.index(name) + 1
        return f"127.0.1.{number}", PORT + os.getpid() % 20000

    @contextmanager
    def started(self) -> Iterator[None]:
        (self.home / "source").write_bytes(self.origin.content)
        placements = []
        for name in self.names:
            pin = load_identity(self.home / name / "state").pin
            if self._old is not None:
                (self.home / name / "file").write_bytes(self._old)
            host, port = self.address(name)
            placements.append(Placement(name, (f"{host}:{port}",), pin))
        transfers = SwarmTransfers.of(self.origin).make(placements)
        for transfer in transfers.values():
            if self._patience is not None:
                transfer["swarm"]["patience"] = self._patience
            if self._direct:
                transfer.pop("swarm", None)
        starts = random.Random(7)
        with ExitStack() as stack:
            specs: list[list[dict[str, Any]]] = [[] for _ in range(self._processes)]
            for number, name in enumerate(self.names):
                behaviour = self.behaviours[name]
                if behaviour.kind == "blocked":
                    stack.enter_context(silent_port(self.address(name)))
                if behaviour.kind != "dead":
                    specs[number % self._processes].append(
                        {
                            "agent_id": name,
                            "home": str(self.home / name),
                            "at": None if behaviour.kind == "blocked" else self.address(name),
                            "rate": self._rate * behaviour.slow if self._rate else None,
                            "starts": self._lead + starts.uniform(0, self._spread),
                            "behaviour": behaviour.kind,
                            "source": str(self.home / "source"),
                            "transfer": transfers[name],
                        }
                    )
            self._began = time.time()
            for number, spec in enumerate(specs):
                path = self.home / f"spec-{number}.json"
                path.write_text(json.dumps(spec))
                self._specs.append(path)
                self._running.append(self._spawn(path))
            try:
                yield
            finally:
                for process in self._running:
                    process.kill()
                    process.wait()
                for reader in self._readers:
                    reader.join(5)
                # pytest shows it with a test that fails.
                print(*(log.read_text() for log in sorted(self.home.glob("*.log"))), sep="\n")
        self.run.egress = self.origin.egress

    def _spawn(self, spec: Path) -> subprocess.Popen[str]:
        path = os.pathsep.join(str(ROOT / part) for part in (".", "layers/core", "layers/client"))
        with (self.home / f"{spec.stem}.log").open("a") as log:
            process = subprocess.Popen(
                [next(self._pythons), "-m", "tests.support.swarm.worker", str(spec), str(self._began)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                cwd=ROOT,
            )
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            result = json.loads(line)
            self.run.results.setdefault(result["agent_id"], result)

    def kill_and_restart(self, number: int) -> dict[str, int]:
        """Sends SIGKILL to a process and restarts its unfinished hosts. Returns their bytes in complete pieces."""
        process = self._running[number]
        process.kill()
        process.wait()
        spec = json.loads(self._specs[number].read_text())
        left = [given | {"starts": 0.0} for given in spec if given["agent_id"] not in self.run.results]
        kept = {given["agent_id"]: self.bytes_on_disk(given["agent_id"]) for given in left}
        self._specs[number].write_text(json.dumps(left))
        self._running[number] = self._spawn(self._specs[number])
        return kept

    def bytes_on_disk(self, name: str) -> int:
        """Bytes of the right pieces in a host's part file."""
        try:
            part = (self.home / name / "part").read_bytes()
        except FileNotFoundError:
            return 0
        content, size = self.origin.content, self.origin.piece_size
        pieces = (slice(at, at + size) for at in range(0, len(content), size))
        return sum(len(content[piece]) for piece in pieces if part[piece] == content[piece])

    def wait(self, limit: float) -> FleetRun:
        """Waits until every host that can get the file has it, or for `limit` seconds."""
        expected = {name for name, behaviour in self.behaviours.items() if behaviour.gets_the_file}
        deadline = idle_clock() + limit
        while expected - self.run.results.keys() and idle_clock() < deadline:
            time.sleep(0.1)
        self.run.wall = max((result["ended"] for result in self.run.results.values()), default=0.0)
        return self.run

    def wrong_files(self) -> list[str]:
        expected = [name for name, behaviour in self.behaviours.items() if behaviour.gets_the_file]
        return [name for name in expected if not self._is_right(self.home / name / "file")]

    def _is_right(self, path: Path) -> bool:
        return path.exists() and path.read_bytes() == self.origin.content


@contextmanager
def silent_port(address: tuple[str, int]) -> Iterator[None]:
    """A port that answers nothing, as behind a firewall that drops packets: its backlog is full."""
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(address)
        silent.listen(0)
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield
