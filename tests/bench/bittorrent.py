"""The swarm's peer: the same hosts, file, rates and moments of starting, by BitTorrent (libtorrent).

    python -m tests.bench.bittorrent SPEC BEGAN        one process of hosts, as tests.support.swarm.worker is ours

What BitTorrent is given for nothing: every host knows the addresses of all others from its first moment, so no tracker
delays it; SHA-1 and no encryption, where ours has SHA-256 and TLS; TCP only, which costs less than uTP. libtorrent
comes from `.lock/bench.txt` (`make bench` installs it in `.local/peers`); without it this is left out, and said so.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.patience import idle_clock
from tests.support.template import ROOT

PEERS = ROOT / ".local" / "peers"
# The hosts of ours have another port in the same network.
PORT = 26_800
# The seed is no host: it plays S3.
SEED = "127.0.2.1"
SETTINGS: dict[str, Any] = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "out_enc_policy": 2,
    "in_enc_policy": 2,
    "rate_limit_ip_overhead": False,
    "connection_speed": 200,
    "min_reconnect_time": 1,
    "max_failcount": 100,
    "listen_queue_size": 100,
    # A swarm of half a minute: by default hosts would decide every 15 s whom they serve.
    "unchoke_interval": 2,
    "optimistic_unchoke_interval": 4,
    "aio_threads": 1,
    "alert_mask": 64,
}


_PATHS = os.pathsep.join(map(str, (PEERS, ROOT, ROOT / "layers/core", ROOT / "layers/client")))
_PLACE: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": _PATHS}, "cwd": ROOT}
# What makers of torrents take for files of this size.
PIECE = 256 * 1024


@dataclass(frozen=True)
class TorrentRun:
    """`sent`: by the seed, in file sizes. `cpu`: processor seconds of the hosts for each GB received."""

    seconds: list[float]
    sent: float
    cpu: float
    wrong: int


def cpu_of(results: Sequence[dict[str, Any]]) -> float:
    """Processor seconds of all processes, each from its first host's start to its last host's end."""
    spans: dict[int, tuple[float, float]] = {}
    for result in results:
        first, last = spans.get(result["pid"], (float("inf"), 0.0))
        spans[result["pid"]] = min(first, result["cpu_from"]), max(last, result["cpu_to"])
    return sum(last - first for first, last in spans.values())


def missing() -> str | None:
    """Why BitTorrent cannot be compared here, or None."""
    return None if (PEERS / "libtorrent").is_dir() else "libtorrent is not installed: `make bench` does, from PyPI"


def run_torrent(
    content: bytes, starts: Sequence[float], rate: float, *, processes: int, super_seeding: bool
) -> TorrentRun:
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        (place / "source").write_bytes(content)
        names = [f"host-{number:02d}" for number in range(len(starts))]
        hosts = [
            {"name": name, "at": f"127.0.1.{number}", "home": str(place / name), "rate": rate, "starts": start}
            for number, (name, start) in enumerate(zip(names, starts, strict=True), 1)
        ]
        seed = {"name": "seed", "at": SEED, "home": home, "rate": 0, "starts": 0.0, "super_seeding": super_seeding}
        port = PORT + os.getpid() % 5000
        shared = {"torrent": str(place / "torrent"), "port": port, "all": [host["at"] for host in [seed, *hosts]]}
        subprocess.run(_command("make", str(place / "source"), str(place / "torrent")), check=True, **_PLACE)
        began = time.time()
        groups = [[seed], *(hosts[number::processes] for number in range(processes))]
        running = [_spawn(place / f"spec-{n}.json", shared | {"hosts": group}, began) for n, group in enumerate(groups)]
        results: list[dict[str, Any]] = []
        readers = [threading.Thread(target=_read, args=(process, results), daemon=True) for process in running]
        for reader in readers:
            reader.start()
        try:
            deadline = idle_clock() + 20 * len(content) / rate + 30
            while len(results) < len(hosts) and idle_clock() < deadline:
                time.sleep(0.1)
            assert running[0].stdin
            # The seed says what it has sent when its input ends.
            running[0].stdin.close()
            readers[0].join(30)
        finally:
            for process in running:
                process.kill()
                process.wait()
            for reader in readers:
                reader.join(5)
        sent = next((result.pop("sent") for result in results if "sent" in result), float("nan"))
        ended = [result for result in results if "seconds" in result]
        wrong = [name for name in names if not _is_right(place / name / "source", content)]
        received = len(ended) * len(content) / 1e9
        cpu = cpu_of(ended) / received if received else float("inf")
        seconds = sorted(result["seconds"] for result in ended)
        return TorrentRun(seconds, sent / len(content), cpu, len(wrong))


def _is_right(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.bench.bittorrent", *arguments]


def _spawn(path: Path, spec: dict[str, Any], began: float) -> subprocess.Popen[str]:
    path.write_text(json.dumps(spec))
    command = _command(str(path), str(began))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **_PLACE)


def _read(process: subprocess.Popen[str], results: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    # One by one: others count what has come.
    for line in process.stdout:
        results += [json.loads(line)]


def same_starts(hosts: int, lead: float, spread: float) -> list[float]:
    """The moments at which the hosts of `SwarmFleet` start."""
    drawn = random.Random(7)
    return [lead + drawn.uniform(0, spread) for _ in range(hosts)]


# --- in a process of hosts


def _make(lt: Any, source: Path, out: Path) -> None:
    files = lt.file_storage()
    lt.add_files(files, str(source))
    made = lt.create_torrent(files, PIECE, lt.create_torrent.v1_only)
    lt.set_piece_hashes(made, str(source.parent))
    out.write_bytes(lt.bencode(made.generate()))


def _host(lt: Any, spec: dict[str, Any], host: dict[str, Any], began: float) -> Any:
    """Takes part as one host. Returns its session, which goes on serving, and its torrent."""
    port, is_seed = spec["port"], host["name"] == "seed"
    listens = {"listen_interfaces": f"{host['at']}:{port}", "outgoing_interfaces": host["at"]}
    session = lt.session(SETTINGS | listens)
    Path(host["home"]).mkdir(exist_ok=True)
    given = lt.add_torrent_params()
    given.ti = lt.torrent_info(spec["torrent"])
    given.save_path = host["home"]
    flags = lt.torrent_flags
    given.flags = flags.disable_dht | flags.disable_lsd | flags.disable_pex
    if is_seed:
        given.flags |= flags.seed_mode | (flags.super_seeding if host["super_seeding"] else 0)
    time.sleep(max(0.0, began + host["starts"] - time.time()))
    started, cpu = time.monotonic(), time.process_time()
    torrent = session.add_torrent(given)
    if host["rate"]:
        # Of the torrent, since the session's own limits do not hold for addresses of a local network.
        torrent.set_download_limit(int(host["rate"]))
        torrent.set_upload_limit(int(host["rate"]))
    if is_seed:
        return session, torrent
    for address in spec["all"]:
        if address != host["at"]:
            torrent.connect_peer((address, port))
    while not torrent.status().is_seeding:
        session.wait_for_alert(50)
        session.pop_alerts()
    result = {"name": host["name"], "seconds": time.monotonic() - started, "pid": os.getpid()}
    result |= {"cpu_from": cpu, "cpu_to": time.process_time()}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    return session, torrent


def main() -> None:
    import libtorrent as lt

    if sys.argv[1] == "make":
        return _make(lt, Path(sys.argv[2]), Path(sys.argv[3]))
    spec, began = json.loads(Path(sys.argv[1]).read_text()), float(sys.argv[2])
    kept: list[Any] = []
    for host in spec["hosts"]:
        threading.Thread(target=lambda given=host: kept.append(_host(lt, spec, given, began)), daemon=True).start()
    sys.stdin.read()
    if spec["hosts"][0]["name"] == "seed":
        print(json.dumps({"sent": kept[0][1].status().total_payload_upload}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
