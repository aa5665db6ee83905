"""Ids, windows, transitions, shards and portions of distribution."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.distribution.inbox import InShard, InStaging, entry_location, staging_id, transfer_token
from tidegate.distribution.model import (
    CANCELLED,
    ENDED,
    FAILED,
    PENDING,
    RUNNING,
    SHARD_LIMIT,
    STATUSES,
    SUCCESS,
    SUPERSEDED,
    TIMEOUT,
    Shard,
    Target,
    TargetReport,
    TargetState,
    TransferSpec,
    bucket_of,
    job_key,
    job_key_of,
    may_become,
    next_wait,
    portions,
    shard_of,
    shortened,
    spread,
    states_before,
    task_uuid_of,
    window_end,
)

SPEC = TransferSpec(1, 2, "/test/path/file.txt", "file.txt", "a" * 64, "root", "/opt")
UUID = "0b0e3f1c-5a53-4f2e-9f5e-0d8f7f2b8c11"


def test_ids_have_the_documented_format() -> None:
    assert SPEC.job_ids(115710720)[0] == "AsyncDownloadJob:1:2:/test/path/file.txt:115710720"
    assert SPEC.task_id(UUID) == f"AsyncDownloadTask:1:2:/test/path/file.txt:{UUID}"


def test_second_content_of_a_window_has_its_digest_in_the_id() -> None:
    _, second, *_ = SPEC.job_ids(7)
    assert second == f"AsyncDownloadJob:1:2:/test/path/file.txt@{SPEC.digest[:12]}:7"


@pytest.mark.parametrize(
    "field", ["file_name", "file_signature", "target_user", "target_file_dir", "file_path", "biz_id", "app_id"]
)
def test_every_field_changes_the_digest(field: str) -> None:
    from dataclasses import replace

    value: str | int = 9 if field.endswith("_id") else "other"
    changed = replace(SPEC, **{field: value})  # type: ignore[arg-type]
    assert changed.digest != SPEC.digest


def test_job_key_comes_from_id_or_key() -> None:
    job_id = SPEC.job_ids(7)[0]
    assert job_key_of(job_id) == job_key(job_id) == job_key_of(job_key(job_id))


@pytest.mark.parametrize(("given", "uuid"), [(UUID, UUID), (f"AsyncDownloadTask:1:2:/a:b:{UUID}", UUID)])
def test_task_uuid_comes_from_id_or_uuid(given: str, uuid: str) -> None:
    assert task_uuid_of(given) == uuid


@pytest.mark.parametrize("given", ["", "x", UUID[:-1], UUID.upper(), "AsyncDownloadTask:1:2:/a:"])
def test_text_without_a_task_uuid_gives_none(given: str) -> None:
    assert task_uuid_of(given) is None


def test_window_of_the_documented_example() -> None:
    moment = datetime(2024, 12, 31, 16, 0, 0, tzinfo=UTC)
    assert bucket_of(moment, 15) == int(moment.timestamp()) // 15
    assert window_end(bucket_of(moment, 15), 15) == moment + timedelta(seconds=15)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)), st.integers(1, 300))
def test_every_moment_is_in_exactly_one_window(naive: datetime, seconds: int) -> None:
    moment = naive.replace(tzinfo=UTC)
    end = window_end(bucket_of(moment, seconds), seconds)
    assert end - timedelta(seconds=seconds) <= moment < end


def test_transitions_are_complete_and_final_states_stay() -> None:
    allowed = {(a, b) for a in STATUSES for b in STATUSES if may_become(a, b)}
    assert allowed == {
        (PENDING, RUNNING),
        (RUNNING, SUCCESS),
        (RUNNING, FAILED),
        (RUNNING, TIMEOUT),
        (RUNNING, CANCELLED),
        (RUNNING, SUPERSEDED),
    }
    assert all(states_before(status) == (RUNNING,) for status in ENDED)


targets = st.builds(Target, st.text(min_size=1, max_size=12), st.text(max_size=4))


@given(st.lists(targets, max_size=300))
def test_each_target_is_in_the_shard_of_its_hash(given: list[Target]) -> None:
    shards = spread(given)
    assert sorted(target for shard in shards for target in shard) == sorted(set(given))
    for number, shard in enumerate(shards):
        assert all(shard_of(target, len(shards)) == number for target in shard)


@pytest.mark.parametrize("count", [0, 1, 500, 501, 5_000, 20_000])
def test_no_shard_holds_more_than_500(count: int) -> None:
    shards = spread(Target(f"agent-{n:06d}") for n in range(count))
    assert sum(map(len, shards)) == count
    assert all(len(shard) <= SHARD_LIMIT for shard in shards)
    assert len(shards) <= count / 350 + 1


def test_spreading_does_not_depend_on_order_or_repetition() -> None:
    some = [Target(f"a-{n}") for n in range(900)]
    assert spread(some) == spread([*reversed(some), *some])


reports = st.builds(
    TargetReport, st.sampled_from([0, 115, 7, -1]), st.text(max_size=5), st.none() | st.integers(0, 100)
)


@given(st.lists(reports, max_size=8))
def test_target_ends_once(given: list[TargetReport]) -> None:
    state, ends = TargetState(), []
    for report in given:
        state = state.after(report)
        ends += [state] if state.ended else []
    assert len(set(ends)) <= 1
    first = next((report for report in given if report.code != 115), None)
    assert state.code == (first.code if first else (115 if given else None))


def test_unchanged_shard_is_the_same_object() -> None:
    shard = Shard(0, {Target("a"): TargetState(0), Target("b"): TargetState(115, "", 10)})
    assert (
        shard.after(
            {Target("a"): TargetReport(7), Target("b"): TargetReport(115, "", 10), Target("c"): TargetReport(0)}
        )
        is shard
    )


def test_report_for_all_changes_only_unfinished_targets() -> None:
    shard = Shard(0, {Target("a"): TargetState(0), Target("b"): TargetState(115)}).after_all(
        TargetReport(9, "no source")
    )
    assert [state.code for state in shard.states.values()] == [0, 9]


def test_long_message_is_cut_between_characters() -> None:
    assert shortened("潮" * 100).encode() == ("潮" * 66).encode()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 500), max_size=40), st.integers(500, 3000))
def test_portions_cover_each_shard_once_and_keep_the_limit(sizes: list[int], most: int) -> None:
    made = portions(sizes, most)
    assert [n for first, last in made for n in range(first, last + 1)] == list(range(len(sizes)))
    assert all(sum(sizes[first : last + 1]) <= most for first, last in made)


def test_job_within_the_limit_is_one_transfer() -> None:
    assert portions([500] * 20, 10_000) == [(0, 19)]
    assert portions([500] * 21, 10_000) == [(0, 19), (20, 20)]


def test_poll_intervals_grow_from_2_to_15_seconds() -> None:
    waits = [2]
    while waits[-1] < 15:
        waits.append(next_wait(waits[-1]))
    assert waits == sorted(waits)
    assert (waits[0], waits[-1], next_wait(15), next_wait(0)) == (2, 15, 15, 2)


def test_transfer_id_contains_the_place_of_its_entries() -> None:
    key = job_key("x")
    target = Target("a-1", "c")
    assert entry_location(transfer_token(key, 0, 7), target) == InShard(key, shard_of(target, 7))
    assert entry_location(staging_id("f" * 64, 1.7e9), target) == InStaging("f" * 64)
    assert entry_location("st-" + "f" * 64, target) == InStaging("f" * 64), "ids of earlier versions"


@pytest.mark.parametrize(
    "given", ["", "tr-x-0-1", f"tr-{'a' * 32}-0-0", "st-zz", f"st-{'f' * 64}-", f"tr-{'a' * 32}-0-1\n"]
)
def test_unknown_transfer_id_has_no_place(given: str) -> None:
    assert entry_location(given, Target("a")) is None
