"""The command import (php-tasks, batch-jobs, subscriptions): imports the data of systems that Tidegate replaces.

Each row of the old system becomes at most one record here. The record names its row (`note`, the path of a file, or
name and URL), so that a second run finds the records of the first."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate_client.cli.context import Context, Exit, Group, Subparsers
from tidegate_client.cli.output import Live, bar
from tidegate_client.client import Client
from tidegate_client.errors import ApiError, Forbidden, TransferError, Unauthorized, UsageError
from tidegate_client.http import read_written
from tidegate_client.resources.paging import walk

Row = Mapping[str, Any]


def register(subparsers: Subparsers) -> None:
    group = Group(subparsers, "import", "carry data over from another system; repeatable, see docs/moving-in.md")
    tasks = group.command("php-tasks", _php_tasks, "tasks of the PHP download centre: exports, and finished files")
    tasks.add_argument("tasks", type=Path, metavar="FILE", help="rows of its table `task`")
    tasks.add_argument(
        "--files", type=Path, metavar="DIR", help="its finished files, named <task id>.<ending> as in its OSS bucket"
    )
    tasks.add_argument("--biz-id", type=int, default=0, help="biz_id of the files (default 0)")
    tasks.add_argument("--app-id", type=int, default=0, help="app_id of the files (default 0)")
    jobs = group.command("batch-jobs", _batch_jobs, "businesses of the batch tool, and its jobs that can still run")
    jobs.add_argument("businesses", type=Path, metavar="BIZ_FILE", help="rows of its table `batch_job_biz`")
    jobs.add_argument("jobs", type=Path, nargs="?", metavar="JOB_FILE", help="rows of its table `batch_job_list`")
    jobs.add_argument("--rate", type=float, default=100, help="items a second of jobs without a limit (default 100)")
    sources = group.command("subscriptions", _subscriptions, "subscriptions of the Python downloader")
    sources.add_argument("sources", type=Path, metavar="FILE", help="its SQLite database, or rows of `subscriptions`")
    sources.add_argument("--schedule", help="when they are scanned (default: its check_interval, else 30 minutes)")
    for command in (tasks, jobs, sources):
        command.add_argument("--dry-run", action="store_true", help="show what would be created, and create nothing")


# --- one row at a time


@dataclass(frozen=True)
class Item:
    """What to do with one row. `make` creates the row's record and returns the id of the record.

    If `make` is None, no record is created. Then `reason` says why, or `there` is the id of the record of an earlier
    run."""

    old: str
    name: str
    make: Callable[[], str] | None = None
    reason: str = ""
    # The id of what an earlier run made of the row.
    there: str = ""


def _carry(context: Context, items: Sequence[Item]) -> Exit:
    """Creates the missing records and prints the outcome of each row.

    The exit code is 1 if the API refused a record."""
    outcomes = []
    with contextlib.closing(Live(context.output)) as live:
        for done, item in enumerate(items, start=1):
            outcomes.append({"old": item.old, "name": item.name} | _outcome(item, context.args.dry_run))
            live.show(f"{bar(done / len(items))} {done}/{len(items)}  {item.name}", important=done == len(items))
    context.output.table(outcomes, ("old", "name", "outcome", "new", "reason"))
    counts = Counter(str(outcome["outcome"]) for outcome in outcomes)
    context.output.note("  ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items())) or "no rows")
    return Exit.FAILED if counts["refused"] else Exit.OK


def _outcome(item: Item, dry_run: bool) -> dict[str, str]:
    if item.there:
        return {"outcome": "there", "new": item.there, "reason": item.reason}
    if item.make is None:
        return {"outcome": "skipped", "new": "", "reason": item.reason}
    if dry_run:
        return {"outcome": "to make", "new": "", "reason": item.reason}
    try:
        return {"outcome": "made", "new": item.make(), "reason": item.reason}
    except (Unauthorized, Forbidden):
        raise
    except (ApiError, TransferError) as error:
        return {"outcome": "refused", "new": "", "reason": str(error)}


def read_rows(path: Path, needed: Iterable[str], table: str = "") -> list[dict[str, Any]]:
    """Reads the rows of a dump: JSON (a list, or an object a line), CSV, `mysql --batch`, or a SQLite table."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if table and content.startswith(b"SQLite format 3\0"):
        rows = _sqlite_rows(path, table)
    else:
        try:
            text = content.decode("utf-8-sig")
            rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else list(_text_rows(text))
        except ValueError as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
    if missing := [name for name in needed if rows and name not in rows[0]]:
        raise UsageError(f"{path} has no column {', '.join(missing)}: dump the whole table, with the names of columns")
    return rows


def _sqlite_rows(path: Path, table: str) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        try:
            # The name of the table is ours.
            return [dict(row) for row in database.execute(f"SELECT * FROM {table}")]  # noqa: S608
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read: {error}") from error


def _json_rows(text: str) -> list[dict[str, Any]]:
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("each row must be an object")
    return list(rows)


# How `mysql --batch` writes characters that would end a cell or a line.
_ESCAPED = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


def _text_rows(text: str) -> Iterator[dict[str, Any]]:
    head, _, rest = text.partition("\n")
    if "\t" not in head:
        yield from csv.DictReader(io.StringIO(text, newline=""))
        return
    names = head.rstrip("\r").split("\t")
    for number, line in enumerate(rest.split("\n"), start=2):
        if cells := line.rstrip("\r").split("\t") if line else []:
            if len(cells) != len(names):
                raise ValueError(f"line {number} has {len(cells)} cells, not {len(names)}")
            plain = (re.sub(r"\\[nt0\\]", lambda found: _ESCAPED[found[0]], cell) for cell in cells)
            values = (None if cell == "NULL" else plainly for cell, plainly in zip(cells, plain))
            yield dict(zip(names, values))


def _number(row: Row, name: str) -> int:
    value = row.get(name)
    try:
        return int(value) if value not in (None, "") else 0
    except ValueError as error:
        raise UsageError(f"{name} of {dict(row)!r:.200} is not a number") from error


# --- the PHP download centre
# https://github.com/linvanda/download: the table `task`, with source and head of the sheet as PHP serialized them.

_TODO = {1: "waiting", 2: "queued", 3: "running", 5: "failed, to be tried again"}
_FINISHED = 4
_DEFAULT_SIZE = 18
_DEFAULT_INTERVAL_MS = 100


def _php_tasks(context: Context, args: argparse.Namespace) -> Exit:
    rows = read_rows(args.tasks, ("id", "name", "type", "status", "source_data"))
    client = context.client
    exports = (export for export in walk(lambda cursor: client.exports.list(limit=100, cursor=cursor)))
    there = {export["note"]: export["task_id"] for export in exports if export.get("note")}
    return _carry(context, [_php_task(client, args, row, there) for row in rows])


def _php_task(client: Client, args: argparse.Namespace, row: Row, there: Mapping[str, str]) -> Item:
    old, name, status = str(row["id"]), str(row["name"]), _number(row, "status")
    if _number(row, "is_deleted") or _number(row, "is_sync"):
        return Item(old, name, reason="deleted there" if _number(row, "is_deleted") else "was downloaded at once")
    if status == _FINISHED:
        return _finished_file(client, args, row)
    if status not in _TODO:
        return Item(old, name, reason=f"failed there: {row.get('failed_reason') or 'no reason was stored'}")
    note = f"php-task:{old}"
    try:
        multiple, body = export_of(row)
    except ValueError as error:
        return Item(old, name, reason=f"cannot be read: {error}")

    def make() -> str:
        fields = {**body, "note": note}
        return client.exports.submit(fields, multiple=multiple, idempotency_key=note.replace(":", "-"))["task_id"]

    return Item(old, name, make, there=there.get(note, ""), reason=f"was {_TODO[status]} there")


def _finished_file(client: Client, args: argparse.Namespace, row: Row) -> Item:
    old, name = str(row["id"]), str(row["name"])
    if not args.files:
        return Item(old, name, reason="finished: give its file with --files")
    # A task id is a name of a file there; one with a slash is none of ours to open.
    found = sorted(args.files.glob(f"{old}.*")) if re.fullmatch(r"[\w-]+", old) else []
    if not found:
        return Item(old, name, reason=f"finished, but {args.files} has no {old}.*")
    source: Path = found[0]
    shown = Path(str(row.get("file_name") or source.name)).stem + source.suffix
    where: dict[str, Any] = {"biz_id": args.biz_id, "app_id": args.app_id, "file_path": f"/php-tasks/{old}/{shown}"}
    files = (file for file in client.files.list(**where)["items"] if file["state"] == "ready")
    there = next((str(file["file_id"]) for file in files), "")
    return Item(old, name, lambda: client.files.put(source, file_name=shown, **where).file_id, there=there)


def export_of(row: Row) -> tuple[bool, dict[str, Any]]:
    """Converts a row of `task` to the fields of a request. Returns (multiple, fields).

    If `multiple` is True, the fields are for POST /v1/task/multiple, else for POST /v1/task. Raises ValueError if the
    row cannot be read."""
    meta = _unserialized(row.get("obj_meta")) or {}
    sources, interval = _sources(row)
    multiple = meta.get("multi_type") in ("page", "tab")
    body: dict[str, Any] = {"name": row["name"], "type": {1: "csv", 2: "excel"}.get(_number(row, "type"), "csv")}
    body |= {name: row[name] for name in ("file_name", "operator_id", "callback") if row.get(name)}
    body |= {name: _number(row, name) for name in ("merchant_type", "merchant_id") if row.get(name) is not None}
    body |= {name: _number(row, name) for name in ("step", "max_exec_time") if _number(row, name)}
    if interval not in (0, _DEFAULT_INTERVAL_MS):
        body["source_rate"] = max(1, 1000 // interval)
    urls = [isinstance(source, str) for source in sources]
    if any(urls) and not all(urls):
        raise ValueError("some of its tables are URLs and some are rows")
    by_table = {"source_url" if all(urls) else "source_data": sources}
    by_table["template"] = [_template(tpl) for tpl in meta.get("templates") or ()]
    for here, there in (("title", "titles"), ("summary", "summaries"), ("header", "headers"), ("footer", "footers")):
        by_table[here] = list(meta.get(there) or ())
    if multiple:
        body["multi_type"] = meta["multi_type"]
    body |= {name: values if multiple else values[0] for name, values in by_table.items() if values and any(values)}
    for name in ("header_align", "footer_align"):
        aligns = meta.get(f"{name.removesuffix('_align')}s_align") or ["right"]
        body |= {name: aligns[0]} if aligns[0] != "right" else {}
    for name in ("default_width", "default_height"):
        body |= {name: meta[name]} if meta.get(name) not in (None, 0, _DEFAULT_SIZE) else {}
    return multiple, body


def _sources(row: Row) -> tuple[list[Any], int]:
    """Returns (sources, milliseconds between two requests).

    There is one source for each table: a URL, or the rows themselves."""
    if row.get("source_url"):
        return [row["source_url"]], 0
    stored = row.get("source_data") or ""
    if str(stored).startswith("O:"):
        source = _unserialized(stored)
        return list(source.get("srcs") or ()), int(source.get("interval") or 0)
    # Rows as JSON, of the centre's first version.
    rows = read_written(stored) if stored else []
    if not rows:
        raise ValueError("it has neither a URL nor rows")
    return [rows], 0


def _template(stored: Any) -> Any:
    """Converts the stored template of a table to the API's form. The stored template is an object of the old system."""
    if not isinstance(stored, dict) or "col" not in stored:
        return stored
    col, row = (_nodes(stored.get(side)) for side in ("col", "row"))
    return {"col": col, "row": row} if row else col


def _nodes(top: Any) -> list[dict[str, Any]]:
    return [_node(child) for child in (top or {}).get("children") or ()]


def _node(stored: Mapping[str, Any]) -> dict[str, Any]:
    style = stored.get("style") or {}
    kept = {name: style[name] for name in ("width", "color", "align") if style.get(name)}
    kept |= {"bg_color": style["bgColor"]} if style.get("bgColor") else {}
    kept |= {"bold": True} if style.get("bold") else {}
    kept |= {"type": "number"} if stored.get("dataType") == "number" else {}
    # Left is what the centre stored where nothing was asked for.
    kept = {name: value for name, value in kept.items() if (name, value) != ("align", "left")}
    node: dict[str, Any] = {"title": stored.get("title") or stored.get("name")}
    if children := _nodes(stored):
        return node | {"children": children}
    node |= {"name": stored.get("name")} | ({"style": kept} if kept else {})
    return node | ({"row_count": stored["rowCount"]} if int(stored.get("rowCount") or 1) > 1 else {})


def _unserialized(text: Any) -> Any:
    return PhpReader(str(text).encode()).value() if text else None


class PhpReader:
    """Parses the output of PHP's serialize() without running any code.

    An array with the keys 0, 1, 2 … becomes a list, any other array a dict, an object a dict of its properties."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        # Values in the order in which PHP numbers them, for references.
        self._seen: list[Any] = []

    def value(self) -> Any:
        kind = self._data[self._at : self._at + 1]
        self._at += 2
        if kind in (b"r", b"R"):
            number = int(self._until(b";"))
            if not 0 < number <= len(self._seen):
                raise ValueError(f"PHP data with a reference to {number}, which is not there")
            found = self._seen[number - 1]
            if kind == b"r":
                self._seen.append(found)
            return found
        place = len(self._seen)
        self._seen.append(None)
        self._seen[place] = made = self._made(kind)
        return made

    def _made(self, kind: bytes) -> Any:
        if kind == b"N":
            return None
        if kind in (b"b", b"i"):
            number = int(self._until(b";"))
            return number == 1 if kind == b"b" else number
        if kind == b"d":
            return float(self._until(b";"))
        if kind == b"s":
            text = self._text()
            self._at += 1
            return text
        if kind == b"a":
            return self._pairs()
        if kind == b"O":
            # The name of the class, then its properties.
            self._text()
            self._at += 1
            made = self._pairs()
            return made if isinstance(made, dict) else {}
        raise ValueError(f"PHP data of the kind {kind.decode(errors='replace')!r} at byte {self._at}")

    def _pairs(self) -> dict[Any, Any] | list[Any]:
        count = int(self._until(b":"))
        self._at += 1
        found: dict[Any, Any] = {}
        for _ in range(count):
            key_kind = self._data[self._at : self._at + 1]
            self._at += 2
            key = self._made(key_kind) if key_kind in (b"i", b"s") else None
            # A property that is not public is written as \0*\0name or \0Class\0name.
            found[key.rpartition("\0")[2] if isinstance(key, str) else key] = self.value()
        self._at += 1
        return list(found.values()) if found and list(found) == list(range(len(found))) else found

    def _text(self) -> str:
        length = int(self._until(b":"))
        start = self._at + 1
        self._at = start + length + 1
        if self._data[start - 1 : start] != b'"' or self._data[self._at - 1 : self._at] != b'"':
            raise ValueError(f"PHP data whose text at byte {start} does not have {length} bytes")
        return self._data[start : start + length].decode()

    def _until(self, end: bytes) -> bytes:
        stop = self._data.find(end, self._at)
        if stop < 0:
            raise ValueError("PHP data that is cut short")
        found, self._at = self._data[self._at : stop], stop + 1
        return found


# --- the batch tool
# https://github.com/zlyuancn/batch_job: the tables `batch_job_biz` and `batch_job_list`.

_JOB_STATES = {1: "waits for its business", 2: "is running", 3: "is finished", 4: "is being stopped"}
_URLS = {"before_create_url": "beforeCreate", "before_run_url": "beforeRun", "process_stop_url": "processStop"}
_LEFT_OUT = ("headers", "proxy", "rspParseField", "insecureSkipVerify")
_FINISHED_JOB = 3


def _batch_jobs(context: Context, args: argparse.Namespace) -> Exit:
    businesses = read_rows(args.businesses, ("biz_id", "biz_name", "exec_extend_data"))
    jobs = read_rows(args.jobs, ("job_id", "job_name", "biz_id", "process_data_total", "status")) if args.jobs else []
    client = context.client
    made = {
        (biz["name"], biz["process_url"]): str(biz["biz_id"])
        for biz in walk(lambda cursor: client.businesses.list(limit=100, cursor=cursor))
    }
    # New ids by old ids: businesses are made before the jobs that need them.
    ids: dict[str, str] = {}
    timeouts: dict[str, int] = {}
    items = [_business(client, row, made, ids, timeouts) for row in businesses]
    batches = walk(lambda cursor: client.batches.list(limit=100, cursor=cursor)) if jobs else iter(())
    there = {batch["note"]: str(batch["batch_id"]) for batch in batches if batch.get("note")}
    known = {str(row["biz_id"]) for row, item in zip(businesses, items) if item.make}
    items += [_job(client, row, args.rate, known, ids, timeouts, there) for row in jobs]
    return _carry(context, items)


def _business(
    client: Client, row: Row, made: Mapping[tuple[str, str], str], ids: dict[str, str], timeouts: dict[str, int]
) -> Item:
    old, name = f"biz {row['biz_id']}", str(row["biz_name"])
    try:
        called = json.loads(row["exec_extend_data"] or "{}").get("httpCallback") or {}
    except ValueError:
        called = {}
    if not called.get("process"):
        return Item(old, name, reason="it has no process URL: Tidegate calls businesses over HTTP only")
    optional = {here: called[there] for here, there in _URLS.items() if called.get(there)}
    if called.get("processTimeout"):
        timeouts[str(row["biz_id"])] = int(called["processTimeout"])
    there = made.get((name, called["process"]), "")
    ids |= {str(row["biz_id"]): there} if there else {}

    def make() -> str:
        ids[str(row["biz_id"])] = new = client.businesses.create(name, called["process"], **optional).biz_id
        return new

    left = ", ".join(field for field in _LEFT_OUT if called.get(field))
    return Item(old, name, make, there=there, reason=f"without {left}: see docs/moving-in.md" if left else "")


def _job(
    client: Client,
    row: Row,
    rate: float,
    known: set[str],
    ids: Mapping[str, str],
    timeouts: Mapping[str, int],
    there: Mapping[str, str],
) -> Item:
    old, biz = str(row["job_id"]), str(row["biz_id"])
    name = str(row["job_name"] or f"job {old}")[:200]
    status = _number(row, "status")
    if status in _JOB_STATES:
        advice = "" if status == _FINISHED_JOB else ": stop it there first, then dump the table again"
        return Item(f"job {old}", name, reason=f"{_JOB_STATES[status]}{advice}")
    if biz not in known:
        return Item(f"job {old}", name, reason=f"its business {biz} is not carried over")
    done, total = _number(row, "processed_count"), _number(row, "process_data_total")
    optional: dict[str, Any] = {"start_index": done, "note": f"batch-job:{old}"}
    if row.get("job_data"):
        optional["job_data"] = _json_or_text(str(row["job_data"]))
    if _number(row, "conc_type") == 1:
        optional["concurrency"] = 1
    if biz in timeouts:
        optional["item_timeout"] = min(timeouts[biz], 600)

    def make() -> str:
        if biz not in ids:
            raise TransferError(f"its business {biz} was refused")
        each = _number(row, "rate_sec") or rate
        return client.batches.create(biz_id=ids[biz], name=name, total=total, rate=each, **optional).batch_id

    found = there.get(f"batch-job:{old}", "")
    return Item(f"job {old}", name, make, there=found, reason=f"items {done} to {total - 1}; tidegate batch start")


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- the Python downloader
# Its SQLite database, with the tables `subscriptions` and `settings`.

_FILTERS = ("date_after", "date_before", "min_likes", "min_favorites", "min_views")


def _subscriptions(context: Context, args: argparse.Namespace) -> Exit:
    rows = read_rows(args.sources, ("id", "name", "url"), "subscriptions")
    client = context.client
    subscriptions = walk(lambda cursor: client.subscriptions.list(limit=100, cursor=cursor))
    there = {(found["name"], found["source_url"]): str(found["subscription_id"]) for found in subscriptions}
    schedule = args.schedule or _interval(args.sources)
    return _carry(context, [_subscription(client, row, schedule, there) for row in rows])


def _interval(path: Path) -> str:
    settings: list[dict[str, Any]] = []
    with contextlib.suppress(UsageError):
        settings = read_rows(path, (), "settings")
    seconds = next((int(row["value"]) for row in settings if row.get("key") == "check_interval"), 1800)
    minutes = max(1, round(seconds / 60))
    return f"rate({minutes} minute{'s' if minutes > 1 else ''})"


def _subscription(client: Client, row: Row, schedule: str, there: Mapping[tuple[str, str], str]) -> Item:
    old, name, url = str(row["id"]), str(row["name"]), str(row.get("url") or "")
    if not url:
        return Item(old, name, reason=f"a {row.get('type') or 'subscription'} without a URL: Tidegate reads lists")
    if found := there.get((name, url)):
        return Item(old, name, there=found)
    try:
        listed = client.subscriptions.preview(url)
    except (Unauthorized, Forbidden):
        raise
    except ApiError as error:
        return Item(old, name, reason=f"not a list that Tidegate reads: {error}")
    active = str(row.get("is_active", 1)) not in ("0", "False", "false")
    filters = ", ".join(name for name in _FILTERS if row.get(name))

    # Without a schedule it is never scanned, which is what the downloader did with it.
    def make() -> str:
        return client.subscriptions.create(name, url, schedule=schedule if active else None).subscription_id

    about = [f"{listed.format}, {listed.chosen} files", "" if active else "without a schedule: it was not active"]
    about.append(f"without {filters}: use include and exclude" if filters else "")
    return Item(old, name, make, reason="; ".join(part for part in about if part))
