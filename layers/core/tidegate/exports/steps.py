"""The steps of the export state machine: pull, render and publish, with copies to buckets and mails."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, EndpointConnectionError

from tidegate.common.ids import Clock
from tidegate.errors import DomainError, Invalid, LeaseLost, RecordNotFound, WorkerLost
from tidegate.exports.model import (
    JSONL,
    MAX_WARNINGS,
    Delivery,
    ExportSpec,
    Rendered,
    export_view,
    file_name_for,
    keeps_pages,
    progress_of,
)
from tidegate.exports.pull import PageList, RangePlan
from tidegate.exports.pull import pull as pull_pages
from tidegate.exports.source import SourcePage, TablePages, page_reader, read_page
from tidegate.exports.store import (
    ExportBucket,
    ExportStore,
    output_object,
    output_prefix,
    page_object,
    pages_prefix,
    spec_object,
    staging_prefix,
)
from tidegate.files.model import content_disposition
from tidegate.queue.model import COMPLETED, Request, Usage
from tidegate.queue.queue import NOTHING_USED, RunningAttempt, Timing
from tidegate.sheets.rows import RowBlocks
from tidegate.sheets.table import ROW_HEAD, Notes, Row, flat_rows, keys_of
from tidegate.sheets.values import read_exact

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.exports import Exports
    from tidegate.projects.model import Project

# --- delivery
# Copies of finished files in the callers' buckets, copied by S3.
#
# The operator allows destinations on two levels: the parameter DeliveryBucket names the buckets for the whole stack,
# and a project's `deliver_to` the keys in them for this project. Without the second, one project could overwrite the
# files of another.

NOWHERE = "-"


class Deliveries:
    def __init__(
        self,
        client_of: Callable[[str | None], S3Client],
        source: str,
        allowed: str,
        project_of: Callable[[str], Project],
    ) -> None:
        self._client_of = client_of
        self._source = source
        self.allowed = allowed
        self._project_of = project_of

    def check(self, project_id: str, deliveries: Sequence[Delivery]) -> None:
        """Raises Invalid if a destination is not allowed for this project."""
        for number, each in enumerate(deliveries):
            if self._is_open(each.bucket) and self._is_granted(project_id, f"{each.bucket}/{each.key}"):
                continue
            detail = (
                f"this project may not copy exports to {each.bucket}/{each.key}: an admin can allow it with deliver_to "
                "of PATCH /v1/projects/{project_id}, in a bucket that the parameter DeliveryBucket names"
            )
            raise Invalid(detail, errors=[{"loc": ["body", "deliver", number, "bucket"], "msg": detail}])

    def _is_open(self, bucket: str) -> bool:
        # Never this system's own bucket, which has the files of every project.
        return self.allowed != NOWHERE and bucket != self._source and fnmatchcase(bucket, self.allowed)

    def _is_granted(self, project_id: str, place: str) -> bool:
        return any(fnmatchcase(place, pattern) for pattern in self._project_of(project_id).deliver_to)

    def send(self, project_id: str, deliveries: Sequence[Delivery], result: dict[str, Any]) -> list[dict[str, Any]]:
        """Copies the file to each destination and returns the state of each copy.

        The export ends even if copies fail.
        """
        return [self._send(project_id, each, result) for each in deliveries]

    def _send(self, project_id: str, delivery: Delivery, result: dict[str, Any]) -> dict[str, Any]:
        name = str(result["file_name"])
        key = delivery.key + name if delivery.key.endswith("/") else delivery.key
        copy = {"bucket": delivery.bucket, "key": key}
        source_client = self._client_of(None)
        try:
            # Check again: the operator may have withdrawn the bucket or the grant since the order.
            self.check(project_id, [replace(delivery, key=key)])
            head = source_client.head_object(Bucket=self._source, Key=result["key"])
            # boto3's `copy` splits files that are too large for one request. It takes botocore's clients too, and is
            # imported here because nothing else needs its transfer manager.
            from boto3.s3.inject import copy as copy_in_parts

            copy_in_parts(
                self._client_of(delivery.region),
                {"Bucket": self._source, "Key": result["key"]},
                delivery.bucket,
                key,
                ExtraArgs={
                    "MetadataDirective": "REPLACE",
                    "ContentType": head["ContentType"],
                    "ContentDisposition": content_disposition(name),
                },
                SourceClient=source_client,
            )
        except Invalid as error:
            return copy | {"state": "failed", "error": error.detail}
        except (ClientError, BotoCoreError) as error:
            logger.warning(
                "a copy of an export could not be delivered", bucket=delivery.bucket, key=key, why=str(error)
            )
            return copy | {"state": "failed", "error": str(error)[:300]}
        return copy | {"state": "delivered"}


# --- email
# Mails with a link to a finished file, sent by SES. The operator sets the sender and the allowed recipients.

NOBODY = "-"
# How long the link in the mail is valid; the console makes new ones while the file is kept.
LINK_SECONDS = 3600
_TRIES = 3
_THROTTLED = frozenset({"Throttling", "ThrottlingException", "TooManyRequestsException"})
_UNREACHED = (EndpointConnectionError, ConnectTimeoutError)


class LinkMail:
    def __init__(
        self,
        ses: Any,
        objects: ExportBucket,
        store: ExportStore,
        clock: Clock,
        sender: str,
        recipients: str,
        api_url: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ses = ses
        self._objects = objects
        self._store = store
        self._clock = clock
        self.sender = sender
        self.recipients = recipients
        self._api_url = api_url
        self._sleep = sleep

    def check(self, addresses: Sequence[str]) -> None:
        """Raises Invalid if mail to one of the addresses is not allowed."""
        for number, address in enumerate(addresses):
            allowed = NOBODY not in (self.sender, self.recipients)
            if not allowed or not fnmatchcase(address.lower(), self.recipients.lower()):
                detail = (
                    f"mail to {address} is not allowed: an operator can allow it with the "
                    "parameters EmailSender and EmailRecipients"
                )
                raise Invalid(detail, errors=[{"loc": ["body", "email", number], "msg": detail}])

    def send(self, addresses: Sequence[str], request: Request, result: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends the mails and returns the state of each. A mail that fails does not fail the export.

        At most one mail is sent per address and export, even if the publish step is repeated: each mail is recorded as
        begun before it is sent. If the function dies in between, the state of the mail is `unknown`.
        """
        return [{"to": address} | self._send(address, request, result) for address in addresses]

    def _send(self, address: str, request: Request, result: dict[str, Any]) -> dict[str, Any]:
        try:
            # Check again: the operator may have changed the recipients since the order.
            self.check([address])
        except Invalid as error:
            return {"state": "failed", "error": error.detail}
        earlier = self._store.begin_mail(request, address, self._clock())
        if earlier is not None:
            return earlier
        outcome = self._outcome(address, request, result)
        self._store.end_mail(request, address, outcome)
        return outcome

    def _outcome(self, address: str, request: Request, result: dict[str, Any]) -> dict[str, Any]:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._ses.send_email(
                    FromEmailAddress=self.sender,
                    Destination={"ToAddresses": [address]},
                    Content={
                        "Simple": {
                            "Subject": {"Data": f"{result['file_name']} is ready", "Charset": "UTF-8"},
                            "Body": {"Text": {"Data": self._text(request, result), "Charset": "UTF-8"}},
                        }
                    },
                )
            except (ClientError, BotoCoreError) as error:
                if tries_left and _is_refused(error):
                    self._sleep(2.0 ** (_TRIES - tries_left))
                    continue
                return _not_sent(request, error)
            break
        return {"state": "sent"}

    def _text(self, request: Request, result: dict[str, Any]) -> str:
        link = self._objects.link(str(result["key"]), LINK_SECONDS, str(result["file_name"]))
        warnings = "".join(f"\nNote: {warning}" for warning in result.get("warnings") or ())
        return (
            f'The export "{request.payload.get("name")}" is ready: {result["file_name"]}, '
            f"{result['rows']:,} rows, {result['size']:,} bytes.{warnings}\n\n"
            f"Download it within an hour:\n{link}\n\n"
            f"Later, with a key of the project, for as long as the file is kept (7 days):\n"
            f"{self._api_url}/#/exports/{request.request_id}\n"
        )


def _not_sent(request: Request, error: ClientError | BotoCoreError) -> dict[str, Any]:
    logger.warning("mail about an export was not sent", request_id=request.request_id, why=str(error))
    lost = _status(error) >= 500 if isinstance(error, ClientError) else not isinstance(error, _UNREACHED)
    return {"state": "unknown" if lost and not _is_refused(error) else "failed", "error": str(error)[:300]}


def _is_refused(error: ClientError | BotoCoreError) -> bool:
    """Whether SES certainly did not accept the mail and a retry may succeed."""
    return isinstance(error, _UNREACHED) or (
        isinstance(error, ClientError) and error.response["Error"]["Code"] in _THROTTLED
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))


# --- steps
# The steps of the export state machine: pull, render, publish, and the end of an export that failed.
#
# Each step first checks that its attempt is still the running one, and each may run twice.

logger = Logger(service="tidegate", child=True)

PULL, RENDER, RANGES, JOIN, PUBLISH, OVER = "pull", "render", "ranges", "join", "publish", "over"
Event = Mapping[str, Any]
TIMING = Timing(look=2.0, beat=2.0)


def pull(exports: Exports, event: Event, seconds_left: float) -> dict[str, Any]:
    """Pulls pages and stages them. Returns the next state: pull again, render, or one input for each range worker."""

    def step(request: Request, heartbeat: RunningAttempt) -> dict[str, Any]:
        pulled = pull_pages(exports, request, _spec(exports, request), heartbeat, seconds_left)
        if isinstance(pulled, RangePlan):
            ids = {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}
            # Passing the plan on saves every worker an S3 request.
            plan = {"plan": pulled.as_data()} if pulled.is_small else {}
            return {"next": RANGES, "lanes": [ids | {"lane": lane} | plan for lane in range(pulled.lanes)]}
        return {"next": RENDER if pulled else PULL}

    return _step(exports, event, step, counted=True)


def render_ranges(exports: Exports, event: Event, seconds_left: float) -> dict[str, Any]:
    """Runs one of several workers that pull and render ranges of pages. Skips ranges that have a record."""
    lane = int(event["lane"])

    def step(request: Request, heartbeat: RunningAttempt) -> dict[str, Any]:
        from tidegate.exports.ranges import work

        passed_on = {"plan": event["plan"]} if "plan" in event else {}
        plan = RangePlan(**event["plan"]) if passed_on else None
        done = work(exports, request, _spec(exports, request), lane, heartbeat, seconds_left, plan)
        return {"next": JOIN if done else RANGES, "lane": lane} | passed_on

    return _step(exports, event, step, counted=True, worker=str(lane))


def render(exports: Exports, event: Event) -> dict[str, Any]:
    """Makes the file: renders the staged pages, or joins the fragments of the range workers."""

    def step(request: Request, heartbeat: RunningAttempt) -> dict[str, Any]:
        spec = _spec(exports, request)
        if event.get("next") == RANGES:
            from tidegate.exports.ranges import join

            heartbeat()
            rendered = join(exports.objects, request, spec)
            # The rows could not be rendered in ranges: stage the pages.
            return {"next": PUBLISH, "file": asdict(rendered)} if rendered else {"next": PULL}
        spec = _with_password(exports, request, spec)
        return {"next": PUBLISH, "file": asdict(render_pages(exports.objects, request, spec, heartbeat))}

    return _step(exports, event, step, counted=True)


def publish(exports: Exports, event: Event) -> dict[str, Any]:
    """Ends the export: publishes its file, or records that the state machine failed."""

    def step(request: Request, heartbeat: RunningAttempt) -> dict[str, Any]:
        if "failure" in event:
            failure = event["failure"]
            # Only for the log: the cause may have a stack trace and names of AWS resources.
            cause = str(failure.get("Cause"))[:500]
            logger.error("the function that ran a step died", request_id=request.request_id, cause=cause)
            raise WorkerLost(f"the function that ran a step of the export died ({failure.get('Error')})")
        result = dict(event["file"])
        if request.payload.get("deliver") or request.payload.get("email"):
            heartbeat()
        if wanted := [Delivery(**each) for each in request.payload.get("deliver") or ()]:
            # Copy before the export ends, so that the copies exist when its callback is sent.
            result["deliveries"] = exports.deliveries.send(request.project_id, wanted, result)
        if addresses := request.payload.get("email"):
            result["emails"] = exports.mail.send(addresses, request, result)
        ids = (request.project_id, request.request_id, request.attempt)
        status = end(exports, *ids, result=result, used=heartbeat.used)
        return {"next": OVER, "status": status}

    return _step(exports, event, step)


def _step(
    exports: Exports,
    event: Event,
    step: Callable[[Request, RunningAttempt], dict[str, Any]],
    *,
    counted: bool = False,
    worker: str = "0",
) -> dict[str, Any]:
    """Runs a step of the running attempt. Returns the state machine's next input; an error ends the export.

    `counted`: the step uses runner-hours of the project. It waits when the runner-hours of the day are used up.
    """
    ids = {name: event[name] for name in ("project_id", "request_id", "attempt")}
    try:
        request = exports.queue.running(**ids)
        heartbeat = RunningAttempt(
            exports.queue,
            request,
            TIMING,
            partial(_push_progress, exports),
            now=lambda: exports.clock().timestamp(),
            worker=worker,
            # Joining many parts or delivering a large file takes long, and these calls have time-outs of their own.
            longest_call=math.inf,
        )
        with heartbeat, exports.runner_time.counted(request.project_id) if counted else nullcontext():
            done = step(request, heartbeat)
            heartbeat.moved_bytes = int(done.get("file", {}).get("size") or 0)
        if done["next"] != OVER:
            heartbeat.rest()
        return ids | done
    except LeaseLost as error:
        logger.info("this attempt of the export is no longer the running one", **ids, why=error.detail)
        _clean_up(exports, exports.queue.get(ids["project_id"], ids["request_id"]))
        return ids | {"next": OVER}
    except DomainError as error:
        logger.warning("a step of an export failed", **ids, code=error.code, why=error.detail)
        return ids | {"next": OVER, "status": end(exports, **ids, error=error)}


def end(
    exports: Exports,
    project_id: str,
    request_id: str,
    attempt: int,
    *,
    result: Any = None,
    error: DomainError | None = None,
    used: Usage = NOTHING_USED,
) -> str:
    """Ends the request, and deletes what its export no longer needs. Returns the final status."""
    try:
        ended = exports.queue.finish(project_id, request_id, attempt, result=result, error=error, used=used)
    except RecordNotFound:
        return OVER
    _clean_up(exports, ended)
    return ended.status


def _clean_up(exports: Exports, request: Request) -> None:
    """Deletes the objects that an ended export no longer needs.

    If the function dies here, the repeated step does it again.
    """
    if not request.is_over:
        return
    project_id, task_id = request.project_id, request.request_id
    exports.objects.abort_uploads(output_prefix(project_id, task_id))
    if request.status == COMPLETED:
        exports.objects.remove(staging_prefix(project_id, task_id))
        exports.objects.remove(output_prefix(project_id, task_id), keep=str((request.result or {}).get("key")))
    else:
        # A retry needs the order, and the staged pages if the source failed at a later page.
        if not keeps_pages(request):
            exports.objects.remove(pages_prefix(project_id, task_id))
        exports.objects.remove(output_prefix(project_id, task_id))


def _spec(exports: Exports, request: Request) -> ExportSpec:
    data = exports.objects.get(spec_object(request.project_id, request.request_id))
    if data is None:
        raise RecordNotFound("the order of this export was deleted: submit the export again")
    return ExportSpec.from_data(read_exact(data))


def _with_password(exports: Exports, request: Request, spec: ExportSpec) -> ExportSpec:
    if not spec.sealed_password:
        return spec
    from tidegate.projects.secrets import opened

    try:
        password = opened(exports.root_secret(), spec.sealed_password, request.project_id, request.request_id)
    except ValueError:
        raise RecordNotFound("the password of this export can no longer be read: submit the export again") from None
    return replace(spec, password=password)


def _push_progress(exports: Exports, request: Request, progress: Mapping[str, Any]) -> None:
    view = export_view(replace(request, progress=dict(progress)), exports.clock(), exports.settings.api_url)
    exports.topic.publish_progress(request.project_id, request.request_id, view)


# --- rendering
# Renders staged pages into a file, streamed into the bucket: memory does not grow with the number of rows.

_READ_AHEAD = 4


def render_pages(
    objects: ExportBucket, request: Request, spec: ExportSpec, heartbeat: Callable[[dict[str, Any]], None]
) -> Rendered:
    """Renders the staged pages into one file in the bucket."""
    # Imports openpyxl, which only this step needs.
    from tidegate.sheets.files import content_type, extension, render
    from tidegate.sheets.rows import shaped
    from tidegate.sheets.xlsx import TableRows

    # S3 bills the parts of an upload that a killed attempt began until it is aborted.
    objects.abort_uploads(output_prefix(request.project_id, request.request_id))
    page_list = PageList.load(objects, request, len(spec.tables), spec.step)
    # A pull that ran twice may have saved the shorter page list last; the file would silently lack rows.
    if not all(
        pages.done or given.data is not None for pages, given in zip(page_list.tables, spec.tables, strict=True)
    ):
        raise WorkerLost("the page list is incomplete; the next attempt pulls the missing pages")
    tables, total, warnings, seen = list[TableRows](), 0, list[str](), 0

    def counted(rows: RowBlocks) -> Iterator[Sequence[Row]]:
        nonlocal seen
        for block in rows:
            heartbeat(progress_of(total, total, seen))
            seen += len(block)
            yield block

    for number, pages in enumerate(page_list.tables):
        table = spec.table(number, pages.answered)
        keys, rows, count = _rows(objects, request, spec, number, pages)
        warnings += [*pages.warnings(), *table.template.warnings(keys)]
        tables.append(TableRows(table, keys, RowBlocks(map(shaped(table), counted(rows))), count))
        total += count
    filling = None
    if spec.fill:
        from tidegate.exports.exports import filling_of, kept_template
        from tidegate.sheets.fill import unfilled

        filling = filling_of(spec, kept_template(objects, request), tables)
        warnings += unfilled(filling, tables)
    output = spec.output()
    ending = extension(output, tables, total)
    key = output_object(request.project_id, request.request_id, request.attempt)
    sink, notes = objects.sink(key, content_type(output, ending)), Notes()
    try:
        for chunk in render(output, tables, total, notes, filling):
            sink.write(chunk)
        sink.close()
    except BaseException:
        sink.abort()
        raise
    warnings += notes.warnings()
    name = file_name_for(str(request.payload["file_name"]), ending)
    return Rendered(key, name, sink.size, total, warnings[:MAX_WARNINGS])


def _rows(
    objects: ExportBucket, request: Request, spec: ExportSpec, number: int, pages: TablePages
) -> tuple[list[str], RowBlocks, int]:
    given = spec.tables[number].data
    if given is not None:
        rows = flat_rows(given)
        return keys_of(rows), RowBlocks.from_rows(rows), len(rows)
    keys = pages.all_keys()
    # Rows under row heads are handled one by one, as dictionaries. A JSON line has only the keys of its own row.
    read = read_page if ROW_HEAD in keys or spec.type == JSONL else page_reader(keys)
    return keys, RowBlocks(_staged(objects, request, number, sorted(pages.counts), read)), pages.rows


def _staged(
    objects: ExportBucket, request: Request, table: int, numbers: list[int], read: Callable[[bytes, int], SourcePage]
) -> Iterator[list[Row]]:
    """Yields the rows of the staged pages in order. Reads a few pages ahead, to hide the latency of S3."""
    with ThreadPoolExecutor(_READ_AHEAD) as threads:
        ahead: deque[tuple[int, Future[bytes | None]]] = deque()
        waiting = iter(numbers)
        # The first page alone: it may be needed long before the others, to measure the columns.
        most = 1
        while True:
            while len(ahead) < most and (number := next(waiting, None)) is not None:
                key = page_object(request.project_id, request.request_id, table, number)
                ahead.append((number, threads.submit(objects.get, key)))
            if not ahead:
                return
            number, future = ahead.popleft()
            body = future.result()
            if body is None:
                raise RecordNotFound(f"the stored page {number} of the source is gone: retry the export")
            yield read(body, number).rows
            most = _READ_AHEAD
