"""A release on real agents, each a process on a host that is a folder, against the deployed stack.

`play` takes the hosts through what a release promises, and returns how long each step took."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import urllib3

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.http_servers import Handler, serve
from tests.support.shell import Shell
from tidegate.common.sequences import slices

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
        # What each agent calls, and how much that was for the last revision, for a host on the average.
        self.calls: Counter[str] = Counter()
        self.calls_a_host = 0.0
        self.api_url = cloud.api_url
        self._pool = urllib3.PoolManager(maxsize=2 * len(names))
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
        shell = Shell(root, self.api_url)
        self.running[name] = shell.start(*words, "--allow-hook", f"reload={hook}", key=self._keys[name])

    def pass_on(self, handler: Handler) -> None:
        """A proxy of the API that counts what agents call."""
        if handler.path.startswith("/v1/agents/"):
            self.calls[handler.path.split("/")[3]] += 1
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in ("host", "connection")}
        url, body = self.cloud.api_url + handler.path, handler.body()
        try:
            answer = self._pool.request(handler.command, url, body=body, headers=headers, retries=False, timeout=60)
        except urllib3.exceptions.HTTPError:
            handler.answer(503)
            return
        handler.answer(answer.status, answer.data, Content_Type=answer.headers.get("content-type", "application/json"))

    def stop(self, name: str, *, kill: bool = False) -> None:
        process = self.running.pop(name)
        process.kill() if kill else process.terminate()
        process.communicate(timeout=120)

    def join(self, names: Iterable[str], *groups: str) -> None:
        """Sets the groups of these hosts, which must have called the API before."""
        for name in names:
            until(partial(self._set_groups, name, groups), bool, 300)

    def _set_groups(self, name: str, groups: tuple[str, ...]) -> bool:
        try:
            return self.project.http("PATCH", f"/v1/agents/{name}", json={"groups": list(groups)}).status == 200
        except urllib3.exceptions.HTTPError:
            # While twenty agents start, the cloud on this machine may be late.
            return False

    def content(self, name: str) -> bytes | None:
        path = self.home / name / "etc/app/app.conf"
        return path.read_bytes() if path.exists() else None

    def all_have(self, content: bytes, names: Iterable[str] | None = None, seconds: float = 240) -> float:
        """Seconds until all these hosts, or all that run, have the content in place."""
        began = time.monotonic()
        wanted = list(names if names is not None else self.running)

        def left() -> list[str]:
            return [name for name in wanted if self.content(name) != content]

        # As long as one more has it within the time: twenty agents and a cloud share this machine.
        before = len(wanted) + 1
        while before:
            before = len(until(left, partial(_is_fewer, before), seconds, 0.05))
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

    def poll(self, name: str) -> None:
        """A poll as the host's agent makes it when it connects."""
        headers = {"X-Tidegate-Can": "stage,release", "X-Tidegate-Goals": ""}
        path = f"/v1/agents/{name}/transfers"
        answer = self.cloud.http("GET", path, key=self._keys[name], headers=headers)
        # A running agent has named its process; the second one without a name is refused after the same reads.
        assert answer.status in (200, 409), answer.body

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


def _is_fewer(before: int, left: list[str]) -> bool:
    return len(left) < before


@contextmanager
def lab(cloud: Deployed, project: DeployedProject, home: Path, hosts: int) -> Iterator[Lab]:
    made = Lab(cloud, project, home, [f"r-{number:02d}" for number in range(hosts)])
    with serve(made.pass_on) as port:
        made.api_url = f"http://127.0.0.1:{port}"
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
    for some in slices(names[: -len(new)], 5):
        for name in some:
            world.start(name)
        world.join(some, "web")
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

    world.calls.clear()
    world.put(LAST)
    world.all_have(LAST)
    world.reaches(lambda shown: shown["status"] == "converged" and shown["counts"]["current"] == len(names))
    world.calls_a_host = world.calls.total() / len(names)
    world.empty_bucket()
    assert world.project.http("POST", f"{PATH}/rollback", json={}).status == 202
    took["rollback"] = world.all_have(THIRD)
    world.reaches(lambda shown: shown["counts"]["current"] == len(names))
    for name in names:
        activated = world.activations(name)
        assert activated == sorted(activated), f"{name} went to a lower revision: {activated}"
    return took
