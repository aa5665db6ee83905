"""The agent as a service: signals, health file, local pages for health and metrics, systemd unit, `doctor`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypedDict, TypeVar

from tidegate_client.agent.codes import RefusedOwner
from tidegate_client.agent.disk import ANY_USER, Fence, Partials, Permits, owner_on_host, require_chown, require_private
from tidegate_client.agent.inbox import Inbox, Reporter
from tidegate_client.agent.journal import JournalError
from tidegate_client.agent.options import AgentOptions
from tidegate_client.agent.threads import SupervisedThread
from tidegate_client.agent.update import SigningError, release_keys
from tidegate_client.client import Client
from tidegate_client.errors import TidegateError, UsageError
from tidegate_client.swarm.port import no_port_reason

log = logging.getLogger("tidegate.agent")

Labels = tuple[tuple[str, str], ...]
HELP = {
    "transfers_total": "Transfers that ended, by result.",
    "received_bytes_total": "Bytes downloaded.",
    "polls_total": "Polls of the inbox, by result.",
    "thread_restarts_total": "Threads that failed and were restarted.",
    "stalls_total": "Downloads postponed because no byte was received.",
    "active_transfers": "Transfers that wait or run.",
    "untold_results": "Results that the API has not accepted yet.",
    "partial_bytes": "Bytes in part files.",
    "free_bytes": "Free bytes on the root's file system; -1 if the root cannot be read.",
    "seconds_since_last_poll": "Seconds since the API last answered a poll; -1 if it never did.",
    "connected": "1 while the WebSocket to the API is open.",
    "healthy": "1 if there are no problems; /healthz names them.",
}


class Statistics:
    """The agent's counters for Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += amount

    def counts(self) -> dict[tuple[str, Labels], float]:
        with self._lock:
            return dict(self._counts)


def prometheus_text(samples: Mapping[tuple[str, Labels], float]) -> str:
    """Returns samples in Prometheus's text format, version 0.0.4."""
    lines: list[str] = []
    for name in sorted({name for name, _ in samples}):
        full = f"tidegate_agent_{name}"
        lines.append(f"# HELP {full} {HELP[name]}")
        lines.append(f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{full}{_labels(labels)} {value}" for (of, labels), value in sorted(samples.items()) if of == name]
    return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --- signals
# SIGTERM and SIGINT, handed to a thread of their own.

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` in another thread for each SIGTERM or SIGINT.

    A signal handler interrupts the main thread anywhere, even while that thread holds a lock, as within `Event.wait`.
    So the handler must not wait for a lock. It calls `SimpleQueue.put`, which needs none."""
    received: SimpleQueue[int] = SimpleQueue()

    def handle_signals() -> None:
        while True:
            received.get()
            stop()

    threading.Thread(target=handle_signals, name="signals", daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: received.put(number))


def restore_stop_signals() -> None:
    """Restores the default: SIGTERM and SIGINT end the process at once."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


# --- health
# The agent's health: a file for `tidegate agent status`, two local HTTP pages, and systemd's watchdog.

HEALTH_FILE, INSTANCE_FILE = "health.json", "instance"
REFUSED_PAUSE = (300.0, 600.0)


class Health(TypedDict):
    """The agent's health, as it is in the health file and on /healthz."""

    agent_id: str
    pid: int
    time: float
    healthy: bool
    problems: list[str]
    # Options that this host cannot fulfil. Files are delivered all the same, so the agent stays healthy.
    warnings: list[str]
    connected: bool
    active: int
    untold_results: int
    partial_bytes: int
    free_bytes: int
    # -1: the API has never answered.
    last_poll_seconds: float
    restarts: dict[str, int]


def write_health(directory: Path, health: Health) -> bool:
    """Replaces the health file atomically. Returns False if the file cannot be written.

    Readers see from the age of the file that it is no longer written."""
    new = directory / f".{HEALTH_FILE}.new"
    try:
        new.write_text(json.dumps(health), encoding="utf-8")
        new.replace(directory / HEALTH_FILE)
    except OSError:
        return False
    return True


def read_health(directory: Path) -> Health | None:
    """Returns the health that an agent wrote last; None if there is none."""
    try:
        found = json.loads((directory / HEALTH_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "pid" in found else None  # type: ignore[return-value]


def write_instance(directory: Path, instance: str) -> None:
    """Writes the agent's instance id for `doctor`, which cannot read the journal while the agent runs."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / INSTANCE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(instance.split()[0])


def notify_systemd(state: str, address: str | None = None) -> None:
    """Sends `READY=1`, `WATCHDOG=1` or `STOPPING=1` to systemd; does nothing if the process is not a service."""
    address = address or os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.connect("\0" + address[1:] if address.startswith("@") else address)
        out.send(state.encode())


def pause_as_service(sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits five to ten minutes if systemd started this process.

    Afterwards the process ends, and systemd restarts it. If an API refuses every key by mistake, hosts thus recover by
    themselves, without a call every few seconds."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    notify_systemd("STATUS=the API refuses this host; next attempt in 5 to 10 minutes")
    left = random.uniform(*REFUSED_PAUSE)  # noqa: S311
    while left > 0:
        notify_systemd("WATCHDOG=1")
        sleep(min(left, 30.0))
        left -= 30.0


# Any user of the host may connect, but must not use up threads, descriptors or processor time of deliveries.
MOST_CALLS, CALL_SECONDS, CALLS_A_SECOND = 4, 10.0, 50
BIND_EVERY = 30.0


class _Pages(ThreadingHTTPServer):
    """An HTTP server for a few callers at a time. Connections of further callers are closed at once."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(MOST_CALLS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)
        time.sleep(1 / CALLS_A_SECOND)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The handler's time-out is for one read: a caller who sends a byte now and then would stay.
        limit = threading.Timer(CALL_SECONDS, self._hang_up, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores the error, because a caller that closes the connection is no problem of the agent."""

    @staticmethod
    def _hang_up(request: socket.socket) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def local_pages(
    host: str, port: int, health: Callable[[], Health], metrics: Callable[[], str], warnings: list[str]
) -> Iterator[None]:
    """Serves `/healthz` (200 or 503, with the reasons) and `/metrics` while the block runs.

    If the port is in use, the agent works without these pages, and `warnings` says so. The port is tried again every
    half minute."""
    current = _cached(lambda: (health(), metrics()))

    class Pages(BaseHTTPRequestHandler):
        timeout = CALL_SECONDS

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", current()[1])
            elif self.path == "/healthz":
                found = current()[0]
                self._answer(200 if found["healthy"] else 503, "application/json", json.dumps(found))
            else:
                self._answer(404, "text/plain; charset=utf-8", "try /healthz or /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Writes no access log, because Prometheus calls every few seconds."""

    stopping = threading.Event()
    servers: list[_Pages] = []

    def serve() -> None:
        while not stopping.is_set():
            try:
                servers.append(_Pages((host, port), Pages))
            except OSError as error:
                if not warnings:
                    reason = f"{error.strerror}; free the port, or choose another with --metrics"
                    warnings.append(f"health and metrics are not served on {host}:{port}: {reason}")
                    log.warning("%s", warnings[0])
                stopping.wait(BIND_EVERY)
                continue
            warnings.clear()
            log.info("health and metrics at http://%s:%d", host, servers[0].server_address[1])
            servers[0].serve_forever()
            return

    thread = threading.Thread(target=serve, name="pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        for server in servers:
            server.shutdown()
            server.server_close()


T = TypeVar("T")


def _cached(read: Callable[[], T], seconds: float = 0.2) -> Callable[[], T]:
    """Returns a function that returns the last result of `read`.

    If this result is older than `seconds`, the function calls `read` again, in one thread at a time."""
    lock = threading.Lock()
    last: list[tuple[float, T]] = []

    def current() -> T:
        with lock:
            if not last or time.monotonic() - last[0][0] > seconds:
                last[:] = [(time.monotonic(), read())]
            return last[0][1]

    return current


# Longer than the longest poll, its time-out margin and the longest back-off together.
SILENT_SECONDS = 120.0


class Monitor:
    """Collects the agent's health and metrics."""

    def __init__(
        self,
        options: AgentOptions,
        statistics: Statistics,
        inbox: Inbox,
        reporter: Reporter,
        partials: Partials,
        poller: SupervisedThread,
        workers: Sequence[SupervisedThread],
        connected: Callable[[], bool] = lambda: False,
        moved: Callable[[], Sequence[Path]] = tuple,
        warnings: Sequence[str] = (),
    ) -> None:
        self._moved = moved
        # Why the pages are not served.
        self.page_warnings: list[str] = []
        self._warnings = warnings
        self._connected = connected
        self._options = options
        self._statistics = statistics
        self._inbox = inbox
        self._reporter = reporter
        self._partials = partials
        # These two must show progress regularly. A worker may wait for work, or for bytes, for a long time.
        self._beating = (poller, reporter.thread)
        self._threads = (*self._beating, *workers)
        self._last_poll: float | None = None

    def polled(self) -> None:
        self._last_poll = time.monotonic()
        self._statistics.add("polls_total", result="ok")

    def health(self) -> Health:
        problems = self._problems()
        return {
            "agent_id": self._options.agent_id,
            "pid": os.getpid(),
            "time": time.time(),
            "healthy": not problems,
            "problems": problems,
            "warnings": [*self._warnings, *self.page_warnings],
            "connected": self._connected(),
            "active": self._inbox.active(),
            "untold_results": _or_minus_one(self._reporter.unreported),
            "partial_bytes": _or_minus_one(self._partials.total_bytes),
            "free_bytes": -1 if (free := free_bytes(self._options.root)) is None else free,
            "last_poll_seconds": -1 if self._last_poll is None else round(time.monotonic() - self._last_poll, 1),
            "restarts": {thread.name: thread.restarts for thread in self._threads},
        }

    def _problems(self) -> list[str]:
        problems = [
            f"the thread {thread.name} has ended; restart the agent"
            for thread in self._threads
            if not thread.is_alive()
        ]
        problems += [
            f"the thread {thread.name} has made no progress for {thread.silent_seconds():.0f} s"
            for thread in self._beating
            if thread.silent_seconds() > SILENT_SECONDS
        ]
        if self._reporter.unsaved():
            problems.append(f"the journal in {self._options.state_dir} cannot be written; is the disk full?")
        if free_bytes(self._options.root) is None:
            problems.append(f"{self._options.root} cannot be read; does it exist, and is it mounted?")
        problems += [
            f"{path} was moved or replaced after the agent had started; find out by whom, then restart the agent"
            for path in self._moved()
        ]
        return problems

    def metrics(self) -> str:
        health = self.health()
        samples: dict[tuple[str, Labels], float] = dict(self._statistics.counts())
        for name, count in health["restarts"].items():
            samples["thread_restarts_total", (("thread", name),)] = count
        samples["active_transfers", ()] = health["active"]
        samples["untold_results", ()] = health["untold_results"]
        samples["partial_bytes", ()] = health["partial_bytes"]
        samples["free_bytes", ()] = health["free_bytes"]
        samples["seconds_since_last_poll", ()] = health["last_poll_seconds"]
        samples["connected", ()] = int(self._connected())
        samples["healthy", ()] = int(health["healthy"])
        return prometheus_text(samples)


def free_bytes(root: Path) -> int | None:
    """Returns the free bytes of the root's file system; None if the root is gone, for example after an unmount."""
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return None


def _or_minus_one(read: Callable[[], int]) -> int:
    try:
        return read()
    except JournalError:
        return -1


UNIT_DIR = Path("/etc/systemd/system")
ENVIRONMENT_DIR = Path("/etc/tidegate")
STATE_BASE = Path("/var/lib")
# Needed to write into directories of any user and to give files to their owners.
CAPABILITIES = "CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH"
# Needed besides to run a hook as another user, and to end it.
OF_HOOKS = " CAP_SETUID CAP_SETGID CAP_KILL"

UNIT = """\
[Unit]
Description=Tidegate agent {agent_id}
Wants=network-online.target
After=network-online.target
# No limit of restarts: the cause of a failed start (a full disk, an API that refuses every key) may be temporary.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile={environment}
ExecStart={command}
Restart=always
RestartSec=5
# The agent notifies systemd while it is healthy; after this long without a notification it is restarted.
WatchdogSec=180
KillSignal=SIGTERM
TimeoutStopSec={stop_seconds}
StateDirectory={state}
StateDirectoryMode=0700
UMask=0022
LimitNOFILE=65536
MemoryMax={memory}
Nice=5

CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes
{file_system}
PrivateDevices=yes
PrivateIPC=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallFilter=@chown{calls}
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Service:
    """The systemd service that runs the agent: its unit file, with no more permissions than the agent needs.

    `writable`: the directories that the agent may write to; if empty, the whole file system. `changes_user`: the agent
    runs hooks as other users."""

    name: str
    agent_id: str
    command: Sequence[str]
    environment: Sequence[tuple[str, str]]
    writable: Sequence[Path]
    drain_seconds: float = 30.0
    memory: str = "512M"
    changes_user: bool = False

    @property
    def unit_path(self) -> Path:
        return UNIT_DIR / f"{self.name}.service"

    @property
    def environment_path(self) -> Path:
        return ENVIRONMENT_DIR / f"{self.name}.env"

    @property
    def release_key_path(self) -> Path:
        return ENVIRONMENT_DIR / f"{self.name}.release-key"

    @property
    def state_dir(self) -> Path:
        return STATE_BASE / self.name

    def unit(self) -> str:
        return UNIT.format(
            agent_id=self.agent_id.replace("%", "%%"),
            environment=self.environment_path,
            command=" ".join(_quoted(word) for word in self.command),
            stop_seconds=int(self.drain_seconds) + 20,
            state=self.name,
            memory=self.memory,
            capabilities=CAPABILITIES + (OF_HOOKS if self.changes_user else ""),
            calls=" @setuid" if self.changes_user else "",
            file_system=self._file_system(),
        )

    def _file_system(self) -> str:
        if not self.writable:
            return "ProtectSystem=no"
        paths = " ".join(_quoted(str(path)) for path in self.writable)
        return f"ProtectSystem=strict\nReadWritePaths={paths}"

    def environment_text(self) -> str:
        return "".join(f'{name}="{_unit_escaped(value)}"\n' for name, value in self.environment)


def _unit_escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(word: str) -> str:
    """Quotes a word of a command for a systemd unit: percent and dollar signs are doubled."""
    if "\n" in word or "\0" in word:
        raise ValueError(f"{word!r} has a line break or a NUL, which a systemd unit cannot have")
    safe = _unit_escaped(word).replace("%", "%%").replace("$", "$$")
    return f'"{safe}"' if any(char in safe for char in " \t\"'\\;") or not safe else safe


# --- doctor
# `tidegate agent doctor`: checks whether this host can receive files.

LEAST_FREE = 1024**3
# S3 refuses presigned URLs if the clocks differ by 15 minutes.
MOST_SKEW = 300.0


class Finding(NamedTuple):
    """The result of one check of `doctor`."""

    check: str
    ok: bool
    detail: str


def examine(client: Client, options: AgentOptions, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Runs the checks of `tidegate agent doctor` and yields the results.
    Changes nothing on the host or in the inbox."""
    with contextlib.suppress(OSError):
        client.agents.instance = (options.state_dir / INSTANCE_FILE).read_text() or None
    yield _api(client, options.agent_id)
    yield _clock(client, now)
    yield _writable("root", options.root)
    yield _writable("state directory", options.state_dir)
    yield _space(options.root)
    yield _private(options.state_dir)
    yield from _grant("", options.root, options.permits, options.container_root)
    for name, grant in options.also.items():
        yield from _grant(f"{name}: ", options.root, grant.permits, grant.container_root)
    if options.self_update:
        yield _self_update(options.release_key)
    if options.swarm and options.swarm.listen:
        yield _peer_port(options.swarm.listen)


def _grant(who: str, root: Path, permits: Permits, container_root: Path | None) -> Iterator[Finding]:
    """Checks what one project may do on this host."""
    if permits.refusal:
        yield Finding(f"{who}permits", False, permits.refusal)
        return
    if container_root:
        yield _fenced(f"{who}container root", root, (), container_root)
    for directory in permits.directories or ("/",):
        yield _fenced(f"{who}allowed directory", root, (directory,))
    users = permits.users - {ANY_USER}
    yield from (_user(who, user) for user in sorted(users))
    if not users:
        yield _any_user(who)


def _api(client: Client, agent_id: str) -> Finding:
    try:
        waiting = client.agents.transfers(agent_id, wait=0)
    except TidegateError as error:
        return Finding("API", False, str(error))
    return Finding("API", True, f"{client.http.api_url} accepts the key of {agent_id}; {len(waiting)} transfers wait")


def _clock(client: Client, now: Callable[[], float]) -> Finding:
    try:
        reply = client.http.send("GET", "/healthz")
        api_time = parsedate_to_datetime(reply.headers["Date"]).timestamp()
    except (TidegateError, KeyError, ValueError) as error:
        return Finding("clock", False, f"the API's clock cannot be read: {error}")
    skew = now() - api_time
    ok = abs(skew) <= MOST_SKEW
    advice = "" if ok else "; synchronise it with NTP: S3 refuses URLs if the clocks differ by 15 minutes"
    return Finding("clock", ok, f"differs by {skew:+.0f} s from the API's{advice}")


def _writable(name: str, directory: Path) -> Finding:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(name, True, f"{directory} can be written")
    except OSError as error:
        return Finding(name, False, f"{directory} cannot be written: {error.strerror}")


def _space(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    ok = free >= LEAST_FREE
    advice = "" if ok else f"; make room for at least {LEAST_FREE / 1024**3:.0f} GiB"
    return Finding("free space", ok, f"{free / 1024**3:.1f} GiB free at {root}{advice}")


def _fenced(name: str, root: Path, directories: tuple[str, ...], container_root: Path | None = None) -> Finding:
    try:
        with Fence(root, directories, container_root) as fence:
            return Finding(name, True, f"{fence.writable[-1]}: no user but root can replace it")
    except UsageError as error:
        return Finding(name, False, str(error))


def _private(state_dir: Path) -> Finding:
    try:
        require_private("--state-dir", state_dir)
    except UsageError as error:
        return Finding("state directory", False, str(error))
    return Finding("state directory", True, f"{state_dir} is safe from other users")


def _any_user(who: str) -> Finding:
    try:
        require_chown((os.geteuid() + 1, 0))
    except RefusedOwner as error:
        return Finding(f"{who}owners", False, str(error))
    return Finding(f"{who}owners", True, "files can be given to any user of this host")


def _self_update(release_key: Path | None) -> Finding:
    try:
        keys = release_keys(release_key)
    except SigningError as error:
        return Finding("self-update", False, str(error))
    return Finding("self-update", True, f"new versions must be signed by one of {len(keys)} keys in {release_key}")


def _peer_port(listen: Sequence[tuple[str, int]]) -> Finding:
    if reason := no_port_reason():
        return Finding("peer port", False, reason)
    where = ", ".join(f"{host} port {number}" for host, number in listen)
    return Finding("peer port", True, f"peers fetch pieces from this host at {where}")


def _user(who: str, user: str) -> Finding:
    try:
        require_chown(owner_on_host(user))
    except RefusedOwner as error:
        return Finding(f"{who}owners", False, str(error))
    return Finding(f"{who}owners", True, f"files can be given to {user}")
