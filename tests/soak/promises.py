"""The promises of the README and of docs/architecture.md, each held against the ledger at the end of a soak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.soak.hosts import NEWER
from tests.soak.ledger import ANSWERS, BATCH, EXPORT, JOB, REQUEST, TASK, Asked
from tests.soak.outside import SIGNED
from tests.soak.reader import ADD_UP, FINAL_STAYS, Reader
from tests.soak.work import CANCELLED, RELEASE_FILES, Work
from tests.support.exports.running import read_csv, read_sheet

# Seconds of a batch in which its rate is checked; a runner that takes over may begin with a full second's items.
_RATE_SECONDS, _BURST_SECONDS = 5.0, 2.0


def everything_ends(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.open():
        yield f"{asked.kind} {asked.record_id} is {asked.states[-1:]}: {asked.last}"


def ends_well(work: Work, _: Reader) -> Iterator[str]:
    """Nothing here has a reason to fail but the sources that do not exist and what a caller cancelled."""
    good = {
        JOB: {"Success", "Superseded"},
        TASK: {"Success", "Superseded"},
        EXPORT: {"completed"},
        BATCH: {"finished"},
        REQUEST: {"completed"},
    }
    for asked in work.ledger.asked.values():
        allowed = set(good[asked.kind])
        if asked.kind == REQUEST:
            allowed = {"failed"} if asked.about["body"] is None else allowed
            allowed = allowed | {"cancelled"} if asked.about["cancelled"] else allowed
        if asked.over and asked.states[-1] not in allowed:
            yield f"{asked.kind} {asked.record_id} ended as {asked.states}: {asked.last}"


def disks_have_what_was_asked(work: Work, _: Reader) -> Iterator[str]:
    work.disks.look()
    for (host, path), version in work.wanted.items():
        if (found := work.disks.now.get((host, path))) != version:
            yield f"{host}:{path} has version {found} instead of {version}"


def delivered_means_on_disk(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.of(TASK):
        host, path, version = asked.about["host"], asked.about["path"], asked.about["version"]
        if asked.states[-1:] == ["Success"] and work.disks.now.get((host, path), 0) < version:
            yield f"{asked.record_id}: {host}:{path} is older than version {version}"


def release_is_everywhere(work: Work, _: Reader) -> Iterator[str]:
    shown = work.caller.get("/v1/releases/app")
    hosts = {item["agent_id"]: item for item in work.caller.pages("/v1/releases/app/hosts")}
    if shown["revision"] != work.revision or shown["status"] != "converged":
        yield f"the release is {shown['status']} at revision {shown['revision']}, asked for was {work.revision}"
    for host in work.hosts:
        found = hosts.get(host.name, {})
        if (found.get("revision"), found.get("state")) != (work.revision, "current"):
            yield f"{host.name}: {found}"
    if Counter(item["state"] for item in hosts.values())["current"] != shown["counts"]["current"]:
        yield f"counts {shown['counts']} are not those of the hosts"
    for host in work.hosts:
        if len({work.disks.now.get((host.name, path)) for path in RELEASE_FILES}) != 1:
            yield f"{host.name} has files of two revisions"


def release_is_not_forgotten(work: Work, _: Reader) -> Iterator[str]:
    """It is for all hosts from its first revision on, and is never deleted."""
    for host in work.hosts:
        for line in host.log.read_text().splitlines():
            if "is no longer for this host" in line:
                yield f"{host.name}: {line}"


def callbacks_come(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.asked.values():
        if not asked.over or not asked.about.get("callback"):
            continue
        notices = work.ledger.notices.get(asked.record_id, [])
        ends = [notice for notice in notices if notice[2] == asked.states[-1]]
        if not ends:
            yield f"{asked.kind} {asked.record_id} ended as {asked.states[-1]}, received were {notices}"
        elif asked.kind != BATCH and len({notice[0] for notice in notices}) > 1:
            yield f"{asked.record_id}: one end was told under two ids: {notices}"


def exports_have_every_row_once(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.of(EXPORT):
        if asked.states[-1:] == ["completed"]:
            data = work.caller.bytes_of(lambda asked=asked: _url(work, asked))  # type: ignore[misc]
            if asked.about["type"] == "csv":
                found = [int(row["id"]) for row in read_csv(data)]
            else:
                found = [int(row[0]) for row in read_sheet(data)[1:]]
            if found != list(range(asked.about["rows"])):
                yield f"{asked.record_id} has {len(found)} rows of {asked.about['rows']}, or in another order"


def _url(work: Work, asked: Asked) -> str:
    return str(work.caller.get("/v1/download/url", task_id=asked.record_id)["url"])


def batches_process_every_item(work: Work, _: Reader) -> Iterator[str]:
    ok: dict[str, Counter[int]] = {}
    for batch, index, _moment, result in work.ledger.calls:
        if result == "ok":
            ok.setdefault(batch, Counter())[index] += 1
    for asked in work.ledger.of(BATCH):
        done, total = ok.get(asked.record_id, Counter()), asked.about["total"]
        work.ledger.count("items processed", len(done))
        work.ledger.count("items processed again after a kill or a freeze", done.total() - len(done))
        if asked.states[-1:] != ["finished"]:
            continue
        if sorted(done) != list(range(total)):
            yield f"{asked.record_id}: {len(done)} of {total} items were processed"
        progress = asked.last["progress"]
        if (progress["succeeded"], progress["processed"]) != (total, total):
            yield f"{asked.record_id} says {progress}"


def batches_keep_their_rate(work: Work, _: Reader) -> Iterator[str]:
    """Counts first calls of items: what a dead runner had sent may be sent again."""
    first: dict[str, dict[int, float]] = {}
    for batch, index, moment, _result in work.ledger.calls:
        first.setdefault(batch, {}).setdefault(index, moment)
    for asked in work.ledger.of(BATCH):
        moments = sorted(first.get(asked.record_id, {}).values())
        most, start = 0, 0
        for at, moment in enumerate(moments):
            while moments[start] < moment - _RATE_SECONDS:
                start += 1
            most = max(most, at - start + 1)
        if most > asked.about["rate"] * (_RATE_SECONDS + _BURST_SECONDS):
            yield f"{asked.record_id}: {most} items within {_RATE_SECONDS:.0f} s at {asked.about['rate']}/s"


def ingested_files_are_those_of_the_source(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.of(REQUEST):
        if asked.states[-1:] == ["completed"]:
            path = f"/v1/files/{asked.about['file_id']}/url"
            if work.caller.bytes_of(lambda path=path: str(work.caller.get(path)["url"])) != asked.about["body"]:  # type: ignore[misc]
                yield f"{asked.record_id} stored other bytes"
        elif asked.states[-1:] == ["failed"] and not asked.last.get("error"):
            yield f"{asked.record_id} failed without a reason"


def cancelled_requests_never_run(work: Work, _: Reader) -> Iterator[str]:
    for asked in work.ledger.of(REQUEST):
        if asked.about.get("never") and work.world.seen(asked.about["path"]):
            yield f"{asked.record_id} was cancelled while it waited, and its source was asked"


def queue_is_empty(work: Work, _: Reader) -> Iterator[str]:
    for name, channel in work.caller.get("/v1/queue/stats")["channels"].items():
        if channel["running"] or channel["queued"]:
            yield f"{name}: {channel}"


def one_record_for_one_request(work: Work, _: Reader) -> Iterator[str]:
    """Callers repeated what was not answered, with the same Idempotency-Key."""
    for kind, path, name in ((EXPORT, "/v1/tasks", "task_id"), (BATCH, "/v1/batches", "batch_id")):
        listed = sorted(str(item[name]) for item in work.caller.pages(path))
        asked = sorted(one.record_id for one in work.ledger.of(kind))
        if listed != asked:
            yield f"{path} lists {len(listed)}, asked for were {len(asked)}: {sorted(set(listed) ^ set(asked))}"
    tasks = sorted(str(task["task_id"]) for task in _tasks(work))
    asked = sorted(one.record_id for one in work.ledger.of(TASK))
    if tasks != asked:
        yield f"Jobs list {len(tasks)} downloads, asked for were {len(asked)}: {sorted(set(tasks) ^ set(asked))}"


def _tasks(work: Work) -> Iterator[dict[str, Any]]:
    for job in work.caller.pages("/v1/jobs"):
        if job["target_file_dir"] == "/srv":
            yield from work.caller.pages("/v1/downloads", job_id=job["job_id"])


def lists_and_single_reads_agree(work: Work, reader: Reader) -> Iterator[str]:
    single = {asked.record_id: reader.read(asked) for asked in list(work.ledger.asked.values())}
    lists = (
        *((item["task_id"], item) for item in work.caller.pages("/v1/tasks")),
        *((item["batch_id"], item) for item in work.caller.pages("/v1/batches")),
        *((item["job_id"], item) for item in work.caller.pages("/v1/jobs")),
        *((item["task_id"], item) for item in _tasks(work)),
    )
    for record_id, item in lists:
        shown = single.get(str(record_id))
        if shown is None:
            continue
        other = {name for name in item.keys() & shown.keys() if item[name] != shown[name]}
        if other:
            yield f"{record_id}: " + ", ".join(f"{name} {item[name]!r} ≠ {shown[name]!r}" for name in sorted(other))


def others_see_nothing(work: Work, _: Reader) -> Iterator[str]:
    stranger = work.caller.cloud.project()
    for asked in list(work.ledger.asked.values())[:40]:
        status, _answer = work.caller.call("GET", asked.path, key=stranger.key, allowed=(404,))
        if status != 404:
            yield f"{asked.path} answered {status} to another project"


CHECKS: dict[str, Callable[[Work, Reader], Iterator[str]]] = {
    "nothing accepted is lost: all of it ends": everything_ends,
    "what can succeed succeeds": ends_well,
    "a submit that is repeated makes one record": one_record_for_one_request,
    "hosts have what was asked for last": disks_have_what_was_asked,
    "what is shown as delivered is on the disk": delivered_means_on_disk,
    "a release is on every host, whole": release_is_everywhere,
    "hosts keep what they know of a release": release_is_not_forgotten,
    "callbacks come at least once, one end under one id": callbacks_come,
    "exports have every row once, in order": exports_have_every_row_once,
    "batches process every item": batches_process_every_item,
    "batches keep their rate": batches_keep_their_rate,
    "ingested files are those of their source": ingested_files_are_those_of_the_source,
    CANCELLED: cancelled_requests_never_run,
    "no slot stays taken": queue_is_empty,
    "lists and single reads agree": lists_and_single_reads_agree,
    "a project sees only its own records": others_see_nothing,
}
# Found while it runs.
WATCHED = (FINAL_STAYS, ADD_UP, NEWER, SIGNED, ANSWERS)


def settled(work: Work) -> bool:
    """Whether everything that was asked for has come to its end, as far as the ledger shows it."""
    if work.ledger.open():
        return False
    checks = (disks_have_what_was_asked, callbacks_come, release_is_everywhere, queue_is_empty)
    return not any(list(check(work, None)) for check in checks)  # type: ignore[arg-type]


def verdict(work: Work, reader: Reader) -> dict[str, list[str]]:
    """What contradicts each promise; empty lists are promises that were kept."""
    found = {promise: list(check(work, reader)) for promise, check in CHECKS.items()}
    return {promise: [] for promise in WATCHED} | found | work.ledger.broken
