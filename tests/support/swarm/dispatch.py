"""Plans a large Job with the product's code, over an in-memory table that counts its calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Table, to_wire
from tidegate.distribution.model import Job, Target, TargetCounts, TransferSpec, shard_of
from tidegate.distribution.store import TargetStore
from tidegate.distribution.swarm import JobSwarm, Presence, PresenceStore, SwarmSettingsStore, swarm_of
from tidegate.files.library import ContentStore
from tidegate.files.model import MIB

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT, JOB_KEY, SIGNATURE = "project", "0" * 32, "5" * 64
SIZE = 1000 * MIB
_SHARD = 500


class CountingDynamo:
    """The part of DynamoDB's client that planning uses. Refuses a batch of more than 100 keys, as AWS does."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._items: dict[str, Mapping[str, Any]] = {}

    def put_item(self, *, Item: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.calls["PutItem"] += 1
        self._items[_name(Item)] = Item
        return {}

    def get_item(self, *, Key: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.calls["GetItem"] += 1
        item = self._items.get(_name(Key))
        return {"Item": item} if item else {}

    def batch_get_item(self, *, RequestItems: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.calls["BatchGetItem"] += 1
        ((table, request),) = RequestItems.items()
        assert len(request["Keys"]) <= 100
        found = [self._items[_name(key)] for key in request["Keys"] if _name(key) in self._items]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}


def _name(item: Mapping[str, Any]) -> str:
    return json.dumps([item["pk"], item["sk"]])


class PlannedJob:
    """The plan of a Job with this many hosts. `calls` are the calls that planning made."""

    def __init__(self, hosts: int) -> None:
        self.agents = [f"host-{n}" for n in range(hosts)]
        dynamo: Any = CountingDynamo()
        table = Table(dynamo, "table")
        targets, presences = TargetStore(table, lasts=3600), PresenceStore(table)
        self.job = _job(hosts)
        count = self.job.shard_count or 0
        shards: list[list[Target]] = [[] for _ in range(count)]
        for agent in self.agents:
            shards[shard_of(Target(agent, ""), count)].append(Target(agent, ""))
        targets.add_shards(self.job, shards, NOW)
        for number, agent in enumerate(self.agents):
            at = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7471"
            presence = Presence(agent, "dc1", f"rack{number % 200}", (at,), "p" * 43)
            presences.put(PROJECT, presence, int(NOW.timestamp()) + 7000)
        content = {"signature": SIGNATURE, "state": "ready", "size": SIZE, "checked_etag": '"e"'}
        lists = {"piece_size": 2 * MIB, "pieces_sha256": "a" * 64, "blocks_sha256": "b" * 64}
        for item in (keys.project(PROJECT) | {"name": "p"}, keys.content(PROJECT, SIGNATURE) | content | lists):
            dynamo.put_item(Item=to_wire(item))
        dynamo.calls.clear()
        d: Any = SimpleNamespace(targets=targets, contents=ContentStore(table), presence_store=presences)
        d.swarm_settings, d.clock, d.last_swarm = SwarmSettingsStore(table), lambda: NOW, None
        self.swarm: JobSwarm = swarm_of(d, self.job, SIZE)
        # The transfers of a Job share one plan.
        assert swarm_of(d, self.job, SIZE) is self.swarm
        self.calls: Counter[str] = dynamo.calls


def _job(hosts: int) -> Job:
    spec = TransferSpec(
        biz_id=1,
        app_id=2,
        file_path="/large.bin",
        file_name="large.bin",
        target_file_dir="/data",
        target_user="root",
        file_signature=SIGNATURE,
    )
    return Job(
        PROJECT,
        "job",
        JOB_KEY,
        spec,
        0,
        closes_at="2026-01-01T00:00:00.000Z",
        create_time="2026-01-01T00:00:00.000Z",
        shard_count=-(-hosts // _SHARD),
        counts=TargetCounts(total=hosts),
        swarm_key="c" * 64,
    )
