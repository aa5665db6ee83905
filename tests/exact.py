"""`make exact`: a batch whose runners are killed, against a chaotic business that keeps a ledger of its own.

The stack is deployed on MiniStack, the business is a server outside of it, and processes that run slices get SIGKILL
while they call it. At the end, what the product says is compared with the ledger: every item was called, every count
and every outcome is right, and the repeated calls are counted for each kill. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.support.deployed import Deployed, DeployedProject, deployed_at
from tests.support.http_servers import Handler, serve
from tests.support.workers import alive, workers
from tidegate.settings import Settings

RETRIES = 6
MOST_REPEATS = 100
# Of 10,000 items: those that always fail, are abandoned, fail once, fail twice.
_FAIL, _ABANDON, _FAIL_ONCE, _FAIL_TWICE = 20, 20, 100, 20
# Of 1,000 calls: those whose answer is lost, those that are answered with 500, and slow ones.
_LOST, _BROKEN, _SLOW = 2, 2, 10
_OVER = ("finished", "stopped")


@dataclass
class Ledger:
    """The business and what it knows: what each item is to answer, and how often each attempt was called."""

    items: int
    seed: int
    calls: bytearray = field(init=False)
    # Calls without an answer: the same attempt may be made again.
    lost: set[int] = field(default_factory=set)
    # (when, how many items were called before with the same attempt, and answered)
    repeats: list[tuple[float, int]] = field(default_factory=list)
    called: int = 0

    def __post_init__(self) -> None:
        self.calls = bytearray(self.items * RETRIES)
        self._lock = threading.Lock()
        self._chance = random.Random(self.seed)

    def fate(self, index: int) -> tuple[str, int]:
        """How the item ends, and how many of its attempts fail first."""
        place = crc32(f"{self.seed}.{index}".encode()) % 10_000
        for fate, share in (
            (("failed", RETRIES), _FAIL),
            (("abandoned", 0), _ABANDON),
            (("ok", 1), _FAIL_ONCE),
            (("ok", 2), _FAIL_TWICE),
        ):
            if place < share:
                return fate
            place -= share
        return "ok", 0

    def __call__(self, request: Handler) -> None:
        """Answers one call with several items."""
        entries = json.loads(request.body())["items"]
        chance = self._note(entries)
        if chance < _LOST:
            request.close_connection = True
            return
        if chance < _LOST + _BROKEN:
            request.answer(500)
            return
        if chance < _LOST + _BROKEN + _SLOW:
            time.sleep(0.3 + chance % 1)
        results = [{"index": entry["index"], **self._answer(entry["index"], entry["attempt"])} for entry in entries]
        request.answer(200, json.dumps({"results": results}).encode(), Content_Type="application/json")

    def _note(self, entries: Sequence[Any]) -> float:
        with self._lock:
            known = 0
            for entry in entries:
                place = entry["index"] * RETRIES + entry["attempt"] - 1
                known += self.calls[place] > 0 and place not in self.lost
                self.called += self.calls[place] == 0 and entry["attempt"] == 1
                self.calls[place] = min(255, self.calls[place] + 1)
            if known:
                self.repeats.append((time.monotonic(), known))
            # An item whose answer is lost too often would fail, which is not its fate.
            late = any(entry["attempt"] >= 3 for entry in entries)
            chance = self._chance.uniform(_LOST + _BROKEN if late else 0, 1000)
            if chance < _LOST + _BROKEN:
                self.lost |= {entry["index"] * RETRIES + entry["attempt"] - 1 for entry in entries}
            return chance

    def _answer(self, index: int, attempt: int) -> dict[str, str]:
        fate, failures = self.fate(index)
        if attempt <= failures:
            return {"result": "error", "msg": f"attempt {attempt} fails"}
        return {"result": "abandon" if fate == "abandoned" else "ok"}

    def attempts(self, index: int) -> int:
        """The highest attempt of the item that was called; 0 if it never was."""
        made = self.calls[index * RETRIES : (index + 1) * RETRIES]
        return max((number + 1 for number, count in enumerate(made) if count), default=0)


@dataclass(frozen=True)
class Run:
    """What a run found."""

    seconds: float
    kills: Sequence[float]
    repeats: Sequence[int]
    faults: Sequence[str]
    counts: dict[str, int]

    @property
    def repeats_a_kill(self) -> float:
        return sum(self.repeats) / max(1, len(self.kills))


def run(
    deployed: Deployed,
    project: DeployedProject,
    *,
    items: int,
    kills: int,
    runners: int,
    rate: float,
    seed: int,
    items_per_call: int = 10,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Runs one batch to its end. `kills` processes are killed at random moments while it runs."""
    ledger, chance = Ledger(items, seed), random.Random(seed)
    killed: list[float] = []
    with serve(ledger) as port:
        biz = project.http("POST", "/v1/biz", json={"name": "chaos", "process_url": f"http://127.0.0.1:{port}/items"})
        order = {"biz_id": biz.json()["biz_id"], "name": "exact", "total": items, "rate": rate, "runners": runners}
        order |= {
            "report": True,
            "items_per_call": items_per_call,
            "retries": RETRIES,
            "retry_delay": 1,
            "on_item_failure": "skip",
        }
        made = project.http("POST", "/v1/batches", json=order)
        assert made.status == 201, made.body
        assert made.json()["runners"] == runners, "the channel has too few slots"
        batch_id, began = made.json()["batch_id"], time.monotonic()
        assert project.http("POST", f"/v1/batches/{batch_id}/start").status == 202
        # Not near the end: there a kill may find no runner at work.
        moments = sorted(chance.uniform(0.02, 0.9) * items for _ in range(kills))
        batch, said = _shown(project, batch_id), 0.0
        while batch["status"] not in _OVER:
            while moments and ledger.called >= moments[0] and _kill_one(deployed, port, chance):
                killed.append(time.monotonic())
                moments.pop(0)
            if time.monotonic() > said + 10:
                said = time.monotonic()
                say(f"{ledger.called:>9,} items called · {len(killed)} kills · {said - began:.0f} s")
            time.sleep(0.2)
            batch = _shown(project, batch_id)
        seconds = time.monotonic() - began
        lines = _lines(deployed, project, batch_id)
        report = _lines(deployed, project, batch_id, all="true")
    repeats = [sum(count for at, count in ledger.repeats if start <= at < end) for start, end in _spans(killed)]
    unexplained = sum(count for _, count in ledger.repeats) - sum(repeats)
    faults = [*_faults(ledger, batch, lines), *_report_faults(items, lines, report)]
    faults += [f"{unexplained} calls were repeated before the first kill"] if unexplained else []
    faults += [f"only {len(killed)} of {kills} processes were killed"] if moments else []
    counts = {name: int(batch["progress"][name]) for name in ("processed", "succeeded", "failed", "abandoned")}
    return Run(seconds, killed, repeats, faults, counts)


def _faults(ledger: Ledger, batch: dict[str, Any], lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    items, progress = ledger.items, batch["progress"]
    skipped = [index for index in range(items) if not ledger.attempts(index)]
    if skipped:
        yield f"{len(skipped)} items were never called, such as {skipped[:5]}"
    fates = {index: ledger.fate(index) for index in range(items)}
    wanted = Counter(fate for fate, _ in fates.values())
    expected = {"processed": items, "failed": wanted["failed"], "abandoned": wanted["abandoned"]}
    expected |= {"succeeded": wanted["ok"]}
    if batch["status"] != "finished":
        yield f"the batch is {batch['status']}: {batch.get('stop_reason')}"
    for name, count in expected.items():
        if progress[name] != count:
            yield f"{name} is {progress[name]:,}, and the ledger says {count:,}"
    states = {line["index"]: line["state"] for line in lines}
    if len(states) != len(lines):
        yield f"{len(lines) - len(states)} items are in the results twice"
    for index, (fate, failures) in fates.items():
        state = states.get(index)
        # A call whose answer was lost is one of its attempts, or was repeated after a kill.
        may = {fate} if fate != "ok" else {"recovered"} if failures else {None, "recovered"}
        if state not in may or (state == "recovered" and ledger.attempts(index) < 2):
            yield f"item {index} is {state} in the results; it should be {fate}, after {failures} failures"


def _report_faults(items: int, lines: Sequence[dict[str, Any]], report: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The report of all items has each of them once, and agrees with the list of those that did not just succeed."""
    states = {line["index"]: line["state"] for line in report}
    if len(report) != items or len(states) != items:
        yield f"the report has {len(report):,} lines for {len(states):,} items"
    unlike = {index: state for index, state in states.items() if state != "succeeded"}
    if unlike != {line["index"]: line["state"] for line in lines}:
        yield "the report and the results disagree"


def _lines(deployed: Deployed, project: DeployedProject, batch_id: str, **query: str) -> list[dict[str, Any]]:
    """Each call puts a part of them together; on a busy machine, one may take longer than a call may."""
    while (answer := project.http("GET", f"/v1/batches/{batch_id}/results", query=query)).status != 200:
        assert answer.status >= 500 or answer.json()["code"] == "not_ready", answer.body
        time.sleep(1)
    link = answer.json()["url"]
    return [json.loads(line) for line in deployed.pool.request("GET", link).data.splitlines()]


def _spans(killed: Sequence[float]) -> Iterator[tuple[float, float]]:
    return zip(killed, [*killed[1:], float("inf")], strict=True)


def _shown(project: DeployedProject, batch_id: str) -> dict[str, Any]:
    answer = project.http("GET", f"/v1/batches/{batch_id}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def _kill_one(deployed: Deployed, port: int, chance: random.Random) -> bool:
    """Sends SIGKILL to one process that is connected to the business. False if there is none."""
    found = [pid for pid in workers(deployed, "RunBatchSliceFunction") if alive(pid) and _is_connected(pid, port)]
    try:
        os.kill(chance.choice(sorted(found)), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def _is_connected(pid: int, port: int) -> bool:
    try:
        held = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Remote address, state (01: established) and inode of the socket.
    return any(f"socket:[{one[9]}]" in held for one in lines if one[2].endswith(f":{port:04X}") and one[3] == "01")


def report(options: argparse.Namespace, found: Run) -> str:
    kills, total = len(found.kills), sum(found.repeats)
    rows = [
        ("items", f"{options.items:,} over {options.runners} runners, seed {options.seed}"),
        ("calls", f"of up to {options.items_per_call} items, at {options.rate:g} items/s"),
        ("time", f"{found.seconds:.0f} s, {options.items / found.seconds:,.0f} items/s"),
        ("counts", ", ".join(f"{name} {count:,}" for name, count in found.counts.items())),
        ("kills", f"{kills} of processes that were calling the business"),
        ("repeats", f"{total:,}, {found.repeats_a_kill:.1f} a kill, at most {max(found.repeats, default=0)}"),
        ("differences", f"{len(found.faults)}" if found.faults else "none: nothing skipped, every count exact"),
    ]
    differences = [f"  ✗ {fault}" for fault in found.faults[:20]]
    return "\n".join([*(f"  {name:<12} {text}" for name, text in rows), *differences])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make exact", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument("--rate", type=float, default=600.0, help="items a second of all runners together")
    parser.add_argument("--items-per-call", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args(arguments)
    settings = {"BatchSliceSeconds": "60", "BatchChannels": "batch", "ChannelCapacities": '{"batch": 40}'}
    # The product's own. That of the tests is shorter: on a busy machine, runners that live lose it.
    settings["BatchLeaseSeconds"] = str(Settings().batch_lease_seconds)
    with tempfile.TemporaryDirectory() as home, deployed_at(Path(home), **settings) as deployed:
        project = deployed.project()
        limits = {"outgoing_calls_per_day": 10**9, "runner_hours_per_day": 10**5, "requests_per_s": 1000}
        path = f"/v1/projects/{project.id}"
        assert deployed.http("PATCH", path, json={"quotas": limits}, key=deployed.admin_key).status == 200
        names = ("items", "kills", "runners", "rate", "seed", "items_per_call")
        asked = {name: getattr(options, name) for name in names}
        found = run(deployed, project, **asked, say=lambda line: print(f"  … {line}", flush=True))
    print(report(options, found))
    if found.repeats_a_kill > MOST_REPEATS:
        print(f"  ✗ more than {MOST_REPEATS} repeats a kill")
        return 1
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
