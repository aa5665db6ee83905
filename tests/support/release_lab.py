"""A release on real agents, each a process on a host that is a folder, against the deployed stack.

`play` takes the hosts through what a release promises, and returns how long each step took."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.shell import Shell

CONTENTS = [b"port = 80\n", b"port = 81\n", b"port = 82\n", b"port = bad\n", b"port = 84\n"]
FIRST, SECOND, THIRD, BAD, LAST = CONTENTS
USER = pwd.getpwuid(os.getuid()).pw_name
PATH = "/v1/releases/app"


class Lab:
    """`sick`: the one host on which the bad content fails."""

    def __init__(self, cloud: Deployed, project: DeployedProject, home: Path, names: list[str]) -> None:
        self.cloud, self.project, self.home, self.names = cloud, project, home, names
        self.sick = names[0]
        self.running: dict[str, subprocess.Popen[str]] = {}
        with ThreadPoolExecutor(4) as pool:
            self._keys = dict(zip(names, pool.map(project.agent_key, names), strict=True))
        for stored in CONTENTS:
            cloud.store(project, "/conf/app.conf", stored, hashlib.sha256(stored).hexdigest())

    # --- hosts

    def start(self, name: str) -> None:
        root = self.home / name
        (root / "etc").mkdir(parents=True, exist_ok=True)
        hook = root / "reload"
        # Notes what it was run for; on one host it refuses what has the word `bad`.
        refuses = (
            f'[ "$TIDEGATE_EVENT" = rollback ] || ! grep bad {root}/etc/app/app.conf' if name == self.sick else ":"
        )
        log = 'echo "$TIDEGATE_EVENT $TIDEGATE_REVISION" >> ' + str(root / "hook.log")
        hook.write_text(f"#!/bin/sh\n{log}\necho reloading\n{refuses}\n")
        hook.chmod(0o755)
        words = ("agent", "--agent-id", name, "--root", str(root), "--allow-dir", "/etc", "--wait", "5")
        shell = Shell(root, self.cloud.api_url)
        self.running[name] = shell.start(*words, "--allow-hook", f"reload={hook}", key=self._keys[name])

    def stop(self, name: str, *, kill: bool = False) -> None:
        process = self.running.pop(name)
        process.kill() if kill else process.terminate()
        process.communicate(timeout=120)

    def join(self, names: Iterable[str], *groups: str) -> None:
        """Sets the groups of these hosts, which must have called the API before."""
        for name in names:
            until(partial(self._set_groups, name, groups), bool, 300)

    def _set_groups(self, name: str, groups: tuple[str, ...]) -> bool:
        return self.project.http("PATCH", f"/v1/agents/{name}", json={"groups": list(groups)}).status == 200

    def content(self, name: str) -> bytes | None:
        path = self.home / name / "etc/app/app.conf"
        return path.read_bytes() if path.exists() else None

    def all_have(self, content: bytes, names: Iterable[str] | None = None, seconds: float = 240) -> float:
        """Seconds until all these hosts, or all that run, have the content in place."""
        began = time.monotonic()
        wanted = list(names if names is not None else self.running)
        until(lambda: [name for name in wanted if self.content(name) != content], lambda left: not left, seconds, 0.05)
        return time.monotonic() - began

    # --- callers

    def put(self, content: bytes, **more: Any) -> int:
        signature = hashlib.sha256(content).hexdigest()
        place = {"target_file_dir": "/etc/app", "target_user": USER}
        file = {"file_path": "/conf/app.conf", "signature": signature, **place}
        body = {"files": [file], "targets": {"groups": ["web"]}, "hook": "reload", **more}
        answer = self.project.http("PUT", PATH, json=body)
        assert answer.status == 201, answer.body
        return int(answer.json()["revision"])

    def shown(self) -> dict[str, Any]:
        return dict(self.project.http("GET", PATH).json())

    def reaches(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 240) -> dict[str, Any]:
        return until(self.shown, holds, seconds, 0.5)

    def empty_bucket(self) -> None:
        """Nothing can be fetched from S3 any more."""
        s3, bucket = self.cloud.client("s3"), self.cloud.outputs["FilesBucketName"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for found in page.get("Contents", ()):
                if self.project.id in found["Key"]:
                    s3.delete_object(Bucket=bucket, Key=found["Key"])

    def activations(self, name: str) -> list[int]:
        """The revisions that the hook of a host was run for, in order."""
        lines = (self.home / name / "hook.log").read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("activate")]


@contextmanager
def lab(cloud: Deployed, project: DeployedProject, home: Path, hosts: int) -> Iterator[Lab]:
    made = Lab(cloud, project, home, [f"r-{number:02d}" for number in range(hosts)])
    try:
        yield made
    finally:
        for name in list(made.running):
            made.stop(name)


def play(world: Lab, seed: int = 1) -> dict[str, float]:
    """Hosts that are down and return, that are new, are killed, and change groups; revisions in quick succession, a
    bad one, and a rollback with an empty bucket. At the end every host has what it should have."""
    chance, took = random.Random(seed), dict[str, float]()
    names = world.names
    new = names[-max(1, len(names) // 10) :]
    down = names[1 : 1 + round(0.3 * len(names))]
    for name in names[: -len(new)]:
        world.start(name)
    world.join(names[: -len(new)], "web")
    for name in down:
        world.stop(name)

    world.put(FIRST)
    took["hosts that are up"] = world.all_have(FIRST)
    assert [world.content(name) for name in down] == [None] * len(down)
    for name in down:
        world.start(name)
    took["hosts that return"] = world.all_have(FIRST)
    for name in new:
        world.start(name)
    world.join(new, "web")
    took["hosts that are new"] = world.all_have(FIRST)

    # Two in quick succession, while one agent is killed and another host leaves the group.
    victim, leaver = chance.sample(names[1:], 2)
    world.put(SECOND)
    world.stop(victim, kill=True)
    world.join([leaver], "db")
    world.put(THIRD, waves=[{"percent": 50}])
    world.start(victim)
    world.all_have(THIRD, [name for name in names if name != leaver])
    world.join([leaver], "web")
    took["two in quick succession"] = world.all_have(THIRD)
    world.reaches(lambda shown: shown["status"] == "converged" and shown["counts"]["current"] == len(names))

    bad = world.put(BAD)
    shown = world.reaches(lambda shown: shown["status"] == "rolled_back")
    took["a bad one is taken back"] = world.all_have(THIRD)
    assert bad in shown["withdrawn"], shown
    world.reaches(lambda shown: shown["counts"]["current"] == len(names))

    world.put(LAST)
    world.all_have(LAST)
    world.reaches(lambda shown: shown["status"] == "converged" and shown["counts"]["current"] == len(names))
    world.empty_bucket()
    assert world.project.http("POST", f"{PATH}/rollback", json={}).status == 202
    took["rollback"] = world.all_have(THIRD)
    world.reaches(lambda shown: shown["counts"]["current"] == len(names))
    for name in names:
        activated = world.activations(name)
        assert activated == sorted(activated), f"{name} went to a lower revision: {activated}"
    return took
