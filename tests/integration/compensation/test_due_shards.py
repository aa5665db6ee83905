"""The `due` index grows with load: busy processes write to other shards, which shard 0 lists."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import SHARD_KEPT_SECONDS, DueShards, ItemPage, Table, _entry, delete, put, update
from tidegate.compensation.poll import CompensationStore, Overdue


def _process(cloud: MotoCloud, shard: int) -> Table:
    """The table as used by another process, which writes to this shard when it is busy."""
    return Table(cloud.app.dynamodb, cloud.app.table.name, due_shards=DueShards(cloud.clock, shard))


def _record(cloud: MotoCloud, name: str) -> dict[str, Any]:
    return {"pk": f"P#x#PROBE#{name}", "sk": "META", "name": name} | keys.due(name, cloud.clock().timestamp(), "probe")


def _write(cloud: MotoCloud, table: Table, count: int, name: str = "r") -> list[str]:
    names = [f"{name}{number:03d}" for number in range(count)]
    for each in names:
        table.write(put(_record(cloud, each)))
    return names


def _overdue(cloud: MotoCloud, limit: int = 20_000) -> Overdue:
    now = cloud.clock().timestamp()
    return CompensationStore(cloud.app.table).overdue(now, now, now + 300, limit)


def _names(found: Overdue) -> list[str]:
    return sorted(item["pk"].removeprefix("P#x#PROBE#") for item in found.found)


def _shards(cloud: MotoCloud) -> Counter[str]:
    items = cloud.client("dynamodb").scan(TableName=cloud.app.table.name)["Items"]
    return Counter(item["due_pk"]["S"] for item in items if item.get("due_kind") == {"S": "probe"})


def test_busy_processes_use_several_shards_and_the_poll_finds_all(cloud: MotoCloud) -> None:
    names = [name for shard in (3, 4, 5) for name in _write(cloud, _process(cloud, shard), 40, f"s{shard}-")]

    assert _names(_overdue(cloud)) == sorted(names)
    # Each process wrote its first twelve records to shard 0, so processes that write little open no shard.
    assert _shards(cloud) == {"DUE#0": 36, "DUE#3": 28, "DUE#4": 28, "DUE#5": 28}


def test_load_of_a_shard_does_not_grow_with_the_processes(cloud: MotoCloud) -> None:
    for shard in range(1, 31):
        _write(cloud, _process(cloud, shard), 20, f"s{shard}-")
    shards = _shards(cloud)

    assert max(count for name, count in shards.items() if name != "DUE#0") == 8
    assert len(shards) == 31


def test_shard_costs_one_more_write_in_five_minutes(cloud: MotoCloud) -> None:
    table = _process(cloud, 7)
    with count_calls(cloud.app) as calls:
        _write(cloud, table, 100)
    assert calls == {"dynamodb.PutItem": 100, "dynamodb.UpdateItem": 1}

    cloud.clock.advance(301)
    with count_calls(cloud.app) as calls:
        _write(cloud, table, 100)
    assert calls == {"dynamodb.PutItem": 100, "dynamodb.UpdateItem": 1}


def test_few_due_writes_cost_no_extra_call(cloud: MotoCloud) -> None:
    with count_calls(cloud.app) as calls:
        _write(cloud, _process(cloud, 7), 12)

    assert calls == {"dynamodb.PutItem": 12}


def test_transactions_updates_and_batches_are_spread_too(cloud: MotoCloud) -> None:
    table = _process(cloud, 9)
    _write(cloud, table, 13)
    record = _record(cloud, "moved")
    table.transact([put(record), put({"pk": "P#x#OTHER", "sk": "META"})])
    table.write(update({"pk": record["pk"], "sk": "META"}, keys.due("moved", 5, "probe")))
    table.batch_put([_record(cloud, "batched")])

    assert _shards(cloud) == {"DUE#0": 12, "DUE#9": 3}
    assert {"moved", "batched"} <= set(_names(_overdue(cloud)))


def test_shard_of_a_process_that_died_before_its_record_closes(cloud: MotoCloud) -> None:
    table = _process(cloud, 7)
    _write(cloud, table, 12)
    write = table._write
    written: list[str] = []

    def dies(*args: Any) -> Any:
        if written:
            raise KeyboardInterrupt
        written.append("entry")
        return write(*args)

    with patch.object(table, "_write", dies), pytest.raises(KeyboardInterrupt):
        table.write(put(_record(cloud, "lost")))
    # The caller tries again, in this process or another: the entry is written before the record.
    table.write(put(_record(cloud, "again")))
    assert "again" in _names(_overdue(cloud))

    for name in _names(_overdue(cloud)):
        cloud.app.table.write(delete({"pk": f"P#x#PROBE#{name}", "sk": "META"}))
    cloud.clock.advance(SHARD_KEPT_SECONDS + 1)
    store = CompensationStore(cloud.app.table)
    assert store.close_shards(_overdue(cloud).empty_shards) == 1
    with count_calls(cloud.app) as calls:
        assert _overdue(cloud) == ([], None, [], {})
    assert calls == {"dynamodb.Query": 1}


def test_records_go_to_shard_0_if_the_entry_cannot_be_written(cloud: MotoCloud) -> None:
    table = _process(cloud, 7)
    names = _write(cloud, table, 12)
    refused: list[str] = []

    def refuse(model: Any, **_: Any) -> None:
        refused.append(model.name)
        raise cloud.app.dynamodb.exceptions.ProvisionedThroughputExceededException(
            {"Error": {"Code": "ProvisionedThroughputExceededException"}}, model.name
        )

    cloud.app.dynamodb.meta.events.register("before-call.dynamodb.UpdateItem", refuse)
    try:
        table.write(put(_record(cloud, "last")))
    finally:
        cloud.app.dynamodb.meta.events.unregister("before-call.dynamodb.UpdateItem", refuse)

    assert refused == ["UpdateItem"]
    assert _names(_overdue(cloud)) == sorted([*names, "last"])


def test_shard_with_a_record_far_in_the_future_stays_listed(cloud: MotoCloud) -> None:
    table = _process(cloud, 7)
    _write(cloud, table, 12)
    later = keys.due("later", cloud.clock().timestamp() + 7 * 86400, "probe")
    table.write(put({"pk": "P#x#PROBE#later", "sk": "META", "name": "later"} | later))
    cloud.clock.advance(SHARD_KEPT_SECONDS + 1)
    store = CompensationStore(cloud.app.table)

    empty = _overdue(cloud).empty_shards
    assert [int(entry["shard"]) for entry in empty] == [7]
    assert store.close_shards(empty) == 0

    cloud.clock.advance(7 * 86400)
    assert "later" in _names(_overdue(cloud))


def test_shard_opened_again_with_a_record_is_not_closed(cloud: MotoCloud) -> None:
    """The poll saw the shard empty. Before the poll closes it, a process renews the entry and writes a record."""
    _write(cloud, _process(cloud, 7), 13)
    [item] = cloud.app.table.query(keys.due_partition(7), index="due").items
    cloud.app.table.write(delete({"pk": item["pk"], "sk": item["sk"]}))
    cloud.clock.advance(SHARD_KEPT_SECONDS + 1)
    empty = _overdue(cloud).empty_shards
    assert empty

    names = _write(cloud, _process(cloud, 7), 13, "new")

    assert CompensationStore(cloud.app.table).close_shards(empty) == 0
    assert set(names) <= set(_names(_overdue(cloud)))


def test_shard_opened_again_without_a_record_yet_is_not_closed(cloud: MotoCloud) -> None:
    """A process has renewed the entry, but has not yet written its record."""
    _write(cloud, _process(cloud, 7), 13)
    [item] = cloud.app.table.query(keys.due_partition(7), index="due").items
    cloud.app.table.write(delete({"pk": item["pk"], "sk": item["sk"]}))
    cloud.clock.advance(SHARD_KEPT_SECONDS + 1)
    empty = _overdue(cloud).empty_shards
    cloud.app.table.write(_entry(7, cloud.clock().timestamp()))

    assert len(empty) == 1
    assert CompensationStore(cloud.app.table).close_shards(empty) == 0
    assert cloud.app.table.get(keys.due_shard(7)) is not None


def test_stale_index_hides_a_record_only_until_it_catches_up(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll reads the index before it shows the new entry and the record."""
    _write(cloud, _process(cloud, 7), 13)
    query = Table.query

    def stale(table: Table, pk: str, *, index: str | None = None, **options: Any) -> ItemPage:
        return ItemPage([], None) if index == "due" else query(table, pk, index=index, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "query", stale)
        found = _overdue(cloud)
        assert found.found == []
        assert CompensationStore(cloud.app.table).close_shards(found.empty_shards) == 0

    assert len(_overdue(cloud).found) == 13


def test_stale_read_does_not_close_a_shard_too_early(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(cloud, _process(cloud, 7), 13)
    cloud.clock.advance(SHARD_KEPT_SECONDS - 1)
    query = Table.query

    def stale(table: Table, pk: str, **options: Any) -> ItemPage:
        return ItemPage([], None) if pk == keys.due_partition(7) else query(table, pk, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "query", stale)
        assert _overdue(cloud).empty_shards == []

    assert len(_overdue(cloud).found) == 13


def test_many_in_one_shard_hide_nothing_in_another(cloud: MotoCloud) -> None:
    _write(cloud, _process(cloud, 7), 60, "many")
    cloud.clock.advance(1)
    _write(cloud, _process(cloud, 8), 13, "few")

    assert "few012" in _names(_overdue(cloud, limit=30))


def test_records_of_the_previous_version_are_found(cloud: MotoCloud) -> None:
    """That version wrote all records to shard 0, and no entries."""
    table = Table(cloud.app.dynamodb, cloud.app.table.name)
    names = _write(cloud, table, 20)

    assert _names(_overdue(cloud)) == names


def test_poll_starts_requests_from_another_shard(cloud: MotoCloud) -> None:
    """A busy process submits requests, and their messages to admission are lost."""
    app = cloud.app
    app.table._due_shards = DueShards(cloud.clock, 21)
    queue = TestQueue(cloud, cloud.project())
    queue.capacity(no_cookie=40)
    requests = [queue.submit() for _ in range(14)]
    item = app.table.get(keys.request(requests[-1].project_id, requests[-1].request_id)) or {}
    assert item["due_pk"] == "DUE#21"
    cloud.client("sqs").purge_queue(QueueUrl=cloud.names.queues["AdmissionQueue"])
    cloud.clock.advance(60)

    for _ in range(3):
        app.compensation.revive()
        app.compensation.tick(app.compensation.status()[0])
        cloud.clock.advance(6)
    queue.admit()

    assert queue.statuses(*requests) == ["running"] * 14


def test_poll_reads_few_attributes_but_handlers_get_whole_records(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of records with callers' payloads would not fit into the function's memory."""
    app, given = cloud.app, list[dict[str, Any]]()
    app.table.write(put(_record(cloud, "large") | {"payload": "x" * 100_000}))
    [kept] = _overdue(cloud).found
    assert len(str(kept)) < 500

    monkeypatch.setattr(app.compensation, "_handlers", {"probe": given.append})
    cloud.clock.advance(60)
    app.compensation.revive()
    app.compensation.tick(app.compensation.status()[0])

    [item] = given
    assert (item["name"], len(item["payload"])) == ("large", 100_000)


def test_poll_over_very_large_records_ends_and_reads_every_shard(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record fills a page, as with records of 400 KB. A poll that read them all would time out."""
    _write(cloud, _process(cloud, 7), 40, "many")
    _write(cloud, _process(cloud, 8), 13, "few")
    monkeypatch.setattr("tidegate.compensation.poll._PAGES", 30)
    query = Table.query

    def one(table: Table, pk: str, **options: Any) -> ItemPage:
        return query(table, pk, **options | {"limit": 1})

    monkeypatch.setattr(Table, "query", one)
    with count_calls(cloud.app) as calls:
        found = _names(_overdue(cloud))

    assert calls["dynamodb.Query"] <= 30 + 2 * 10
    assert "few012" in found
    assert "many012" in found
