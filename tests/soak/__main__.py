"""`make soak MINUTES=10 SEED=7`: everything at once on the local cloud, under faults, held against a ledger.

All capabilities work at the same time, with real agents, receivers, businesses and sources that fail. Functions and
agents are killed or frozen, the cloud restarts, the clocks of hosts are set. At the end, every promise of the README
is checked against what was asked and what was seen from outside. The exit code is 1 if one was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.caller import Caller
from tests.soak.chaos import Chaos
from tests.soak.hosts import Disks, make_hosts
from tests.soak.ledger import HARNESS, Ledger
from tests.soak.outside import outside
from tests.soak.promises import settled, verdict
from tests.soak.reader import Reader
from tests.soak.work import Work
from tests.support.deployed import Deployed, deployed_at
from tidegate_client import Client

# A message that a killed function had is hidden for three minutes on AWS. Less here: more happens in a minute.
_HIDDEN_SECONDS = "25"
# Records must outlast the run; on AWS they expire half an hour after their end. Ten minutes are enough for a Job
# there, not on a machine on which everything else runs as well.
_PARAMETERS = {"RecordTtlSeconds": "36000", "JobTimeoutSeconds": "3600"}
# The reader alone would use up the default of five requests a second, and an hour of this work what a day allows.
_QUOTAS = {
    "requests_per_s": 1000,
    "runner_hours_per_day": 10**6,
    "egress_bytes_per_day": 10**15,
    "outgoing_calls_per_day": 10**9,
}
# The end of a run waits for as long as something still goes on, and gives up after so many seconds without.
_QUIET_SECONDS = 240


def soak(home: Path, minutes: float, seed: int, hosts: int, say: Callable[[str], None]) -> dict[str, list[str]]:
    """Runs for so long, waits until everything has ended, and returns what contradicts each promise.

    In no minutes, a few of everything runs under gentle faults, for as long as that takes: as a test of the suite.
    """
    ledger, small = Ledger(), not minutes
    with deployed_at(home / "cloud", **_PARAMETERS) as cloud, outside(ledger, seed) as world:
        show_messages_sooner(cloud)
        project = cloud.project()
        changed = cloud.http("PATCH", f"/v1/projects/{project.id}", json={"quotas": _QUOTAS}, key=cloud.admin_key)
        assert changed.status == 200, changed.body
        world.secret = project.callback_secret
        Client(cloud.api_url, cloud.admin_key).projects.set_swarm(project.id, peer_networks=["127.0.0.0/8"])
        caller = Caller(cloud, project, ledger)
        machines = make_hosts(project, home, hosts)
        chaos, reader = Chaos(cloud, machines, ledger, seed, gentle=small), Reader(caller, seed)
        try:
            with Disks(machines, ledger) as disks:
                for machine in machines:
                    machine.start()
                work = Work(caller, world, machines, disks, seed)
                work.start(1.0 if minutes < 3 else 2.0, small=small)
                reader.start()
                chaos.start(minutes * 60)
                for minute in range(1, round(minutes) + 1):
                    time.sleep(minutes * 60 / max(1, round(minutes)))
                    say(f"  minute {minute}: {_line(ledger)}")
                    if HARNESS in ledger.broken:
                        say(f"  without faults, the rest would say nothing: {ledger.broken[HARNESS]}")
                        break
                while _begins(work, small) and ledger.quiet_for() < _QUIET_SECONDS:
                    time.sleep(0.5)
                chaos.stop()
                world.calm.set()
                work.stop()
                work.last_versions()
                _settle(work, say)
                reader.stop()
                broken = verdict(work, reader)
        finally:
            for machine in machines:
                machine.kill()
    _report(ledger, broken, say)
    return broken


def _begins(work: Work, small: bool) -> bool:
    return work.at_work() if small else not work.began_everything()


def show_messages_sooner(cloud: Deployed) -> None:
    sqs = cloud.client("sqs")
    for url in sqs.list_queues().get("QueueUrls", []):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": _HIDDEN_SECONDS})


def _settle(work: Work, say: Callable[[str], None]) -> None:
    """Waits for the end of everything, with compensation at work, for as long as anything moves."""
    began = time.monotonic()
    while not settled(work):
        if work.ledger.quiet_for() > _QUIET_SECONDS:
            say(f"  nothing has moved for {_QUIET_SECONDS} s")
            return
        work.caller.admin("POST", "/v1/compensation/trigger")
        time.sleep(2)
    say(f"  all has ended, {time.monotonic() - began:.0f} s after the last fault")


def _line(ledger: Ledger) -> str:
    return f"{len(ledger.asked)} asked for, {len(ledger.open())} open, {sum(map(len, ledger.broken.values()))} broken"


def _report(ledger: Ledger, broken: dict[str, list[str]], say: Callable[[str], None]) -> None:
    say("")
    for what, count in sorted(ledger.counts.items()):
        say(f"  {count:>7,} {what}")
    say("")
    for seconds, call, without in ledger.longest:
        say(f"  {seconds:>7,.0f} s until an answer to {call}{f' ({without})' if without else ''}")
    say("")
    for promise, found in broken.items():
        say(f"  {'✗' if found else '✓'} {promise}")
        for one in found[:5]:
            say(f"      {one}"[:1000])
        if len(found) > 5:
            say(f"      and {len(found) - 5} more")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the cloud and of the hosts")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"soak of {given.minutes:g} minutes, seed {given.seed}, in {home}", flush=True)
    broken = soak(home, given.minutes, given.seed, given.hosts, lambda line: print(line, flush=True))
    kept = not any(broken.values())
    if kept and not given.keep:
        import shutil

        shutil.rmtree(home, ignore_errors=True)
    print(f"\n{'every promise was kept' if kept else 'a promise was broken'} (seed {given.seed})")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
