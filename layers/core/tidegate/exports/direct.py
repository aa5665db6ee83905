"""Sources that are read without an HTTP endpoint: an S3 object, a DynamoDB query, Athena SQL."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from math import inf
from typing import TYPE_CHECKING, Any, cast

import msgspec
from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.table import decode_cursor, encode_cursor
from tidegate.common.ids import digest
from tidegate.errors import ConnectionFailed, FetchTimeout, ServiceUnavailable, SourceBroken, SourceNotGranted
from tidegate.exports.model import DIRECT
from tidegate.exports.source import MAX_KEYS, PagePlace
from tidegate.projects.model import Project
from tidegate.sheets.values import Digits, write_exact

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.exports import Exports

Options = Mapping[str, Any]


def page_body(rows: Iterable[bytes], next_cursor: str | None, snapshot: str | None = None) -> bytes:
    """Returns a page in the format of an HTTP source. `rows` are encoded JSON objects."""
    return b'{"status":200,"data":{"data":[%b],"next":%b,"snapshot":%b}}' % (
        b",".join(rows),
        write_exact(next_cursor),
        write_exact(snapshot),
    )


# --- s3 object
# Rows of an S3 object, CSV or JSON lines, read by byte ranges.
#
# The cursor is the offset of the next row. The snapshot is the object's ETag: if the object is replaced while it is
# read, the export fails instead of mixing two contents.

WINDOW = 1024 * 1024
# Several copies of a page have to fit into memory.
MOST_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LINE_END, _CSV_LINE_END = re.compile(rb"\n"), re.compile(rb"\r\n?|\n")
_lines = msgspec.json.Decoder(dict[str, msgspec.Raw])


# The column names and the offset of the first row, by object and version. A process reads few objects at a time.
_MOST_HEADS = 20
_heads: dict[tuple[str, ...], tuple[list[str], int]] = {}


def s3_page(
    exports: Exports, options: Options, place: PagePlace, step: int, _task_id: str, seconds: float | None
) -> bytes:
    """Returns a page of up to `step` rows of an S3 object.

    Raises SourceBroken if the object was replaced since the first page.
    """
    until = inf if seconds is None else time.monotonic() + seconds
    if place.snapshot:
        etag, _, size = place.snapshot.rpartition("/")
    else:
        found = exports.s3.head_object(Bucket=options["bucket"], Key=options["key"])
        etag, size = found["ETag"], str(found["ContentLength"])
    reading = _Reading(exports.s3, options, etag, int(size), until)
    head, begin = _head(options, reading) if options["format"] == "csv" else (None, None)
    offset = int(place.cursor) if place.cursor else reading.begin() if begin is None else begin
    rows, end = reading.records(offset, step)
    next_cursor = str(end) if end < reading.size else None
    encoded = _csv_rows(rows, head, options, offset) if head is not None else _json_lines(rows, offset)
    return page_body(encoded, next_cursor, reading.snapshot)


def _head(options: Options, reading: _Reading) -> tuple[list[str], int]:
    how = str(options.get("delimiter")), str(options.get("encoding"))
    version = str(options["bucket"]), str(options["key"]), reading.etag, *how
    if version not in _heads:
        begin = reading.begin()
        records, end = reading.records(begin, 1)
        names = _fields(records[0], options, begin) if records else []
        if len(set(names)) != len(names):
            raise SourceBroken("the header row of the object names a column twice: give every column its own name")
        if len(names) > MAX_KEYS:
            raise SourceBroken(f"the header row of the object has more than {MAX_KEYS} columns: check the `delimiter`")
        if len(_heads) >= _MOST_HEADS:
            _heads.clear()
        _heads[version] = names, end
    return _heads[version]


class _Reading:
    """Reads ranges of one version of an object.

    Raises FetchTimeout after `until`, a time of the monotonic clock.
    """

    def __init__(self, client: S3Client, options: Mapping[str, Any], etag: str, size: int, until: float) -> None:
        self._client, self._options, self._until = client, options, until
        self.etag, self.size = etag, size
        self.snapshot = f"{etag}/{size}"

    def begin(self) -> int:
        return len(_BOM) if self._bytes(0, len(_BOM)) == _BOM else 0

    def records(self, offset: int, most: int) -> tuple[list[bytes], int]:
        """Returns (records, offset after them): up to `most` whole records from `offset` on. Leaves out blank lines."""
        data = b""
        while True:
            if len(data) >= MOST_BYTES:
                raise SourceBroken(
                    f"the row at byte {offset} does not end within {MOST_BYTES:,} bytes: is a quote missing?"
                )
            data += self._bytes(offset + len(data), max(WINDOW, len(data)))
            at_end = offset + len(data) >= self.size
            records, used = split_records(data, most, quoted=self._options["format"] == "csv", at_end=at_end)
            # Return a page shorter than requested only if it is large.
            if at_end or len(records) == most or (records and len(data) >= MOST_BYTES // 2):
                return records, offset + used

    def _bytes(self, offset: int, count: int) -> bytes:
        if offset >= self.size:
            return b""
        if time.monotonic() >= self._until:
            raise FetchTimeout("the object's rows were not read within the source_timeout")
        last = min(offset + count, self.size) - 1
        try:
            answer = self._client.get_object(
                Bucket=self._options["bucket"],
                Key=self._options["key"],
                Range=f"bytes={offset}-{last}",
                IfMatch=self.etag,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "412"):
                raise SourceBroken("the object was replaced while it was read: retry the export") from error
            raise
        return answer["Body"].read()


def split_records(data: bytes, most: int, *, quoted: bool, at_end: bool) -> tuple[list[bytes], int]:
    """Returns (records, number of bytes used): up to `most` whole records from the beginning of the data.

    `quoted`: whether the data are CSV. A line break inside a quoted CSV field does not end the record. `at_end`:
    whether no more data follow.
    """
    records, used, begin, at = list[bytes](), 0, 0, 0
    inside = False
    # A row of empty fields that tabs separate is not blank.
    line_end, blank = (_CSV_LINE_END, b" \r\n") if quoted else (_LINE_END, None)
    while len(records) < most and at < len(data):
        found = line_end.search(data, at)
        end = found.end() if found else len(data)
        # A CR at the end of the data may be the first half of a CR LF.
        if not at_end and (found is None or (end == len(data) and found[0] == b"\r")):
            break
        if quoted and data.count(b'"', at, end) % 2:
            inside = not inside
        at = end
        if inside and not (at_end and at >= len(data)):
            continue
        record = data[begin:at].strip(b"\r\n")
        if record.strip(blank):
            records.append(record)
        begin = used = at
    return records, used


def _fields(record: bytes, options: Mapping[str, Any], offset: int) -> list[str]:
    return next(_csv_reader(_text(record, options, offset), options))


def _csv_reader(text: str, options: Mapping[str, Any]) -> Iterator[list[str]]:
    # csv's default limit is 128 KB; `records` already limits the size of a row.
    csv.field_size_limit(2 * MOST_BYTES)
    return csv.reader(io.StringIO(text, newline=""), delimiter=options.get("delimiter") or ",")


def _text(data: bytes, options: Mapping[str, Any], offset: int) -> str:
    encoding = str(options.get("encoding") or "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SourceBroken(
            f"byte {offset + error.start} of the object is not valid {encoding}: name the right `encoding`"
        ) from error


def _csv_rows(records: list[bytes], head: list[str], options: Mapping[str, Any], offset: int) -> list[bytes]:
    rows = []
    for fields in _csv_reader(_text(b"\n".join(records), options, offset), options):
        if len(fields) > len(head):
            detail = (
                f"a row after byte {offset} has {len(fields)} fields, but the header row has {len(head)}: check the "
                f"quotes and the `delimiter`. The row begins with {fields[:3]}"
            )
            raise SourceBroken(detail[:500])
        rows.append(write_exact(dict(zip(head, fields, strict=False))))
    return rows


def _json_lines(records: list[bytes], offset: int) -> list[bytes]:
    for record in records:
        try:
            _lines.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            detail = f"a line after byte {offset} of the object is not a JSON object ({error}): {record[:80]!r}"
            raise SourceBroken(detail) from error
    return records


# --- dynamodb query
# Rows of a DynamoDB query. A table is never scanned: the key condition has to name a partition.

_read, _write = TypeDeserializer(), TypeSerializer()


def dynamodb_page(
    exports: Exports, options: Options, place: PagePlace, step: int, _task_id: str, _seconds: float | None
) -> bytes:
    """Returns a page of a DynamoDB query that reads up to `step` items."""
    request: dict[str, Any] = {
        "TableName": options["table"],
        "KeyConditionExpression": options["key_condition"],
        "ExpressionAttributeValues": {
            name: _write.serialize(_storable(value)) for name, value in options["values"].items()
        },
        "Limit": step,
        "ScanIndexForward": not options.get("newest_first"),
    }
    names = dict(options.get("names") or {})
    if attributes := options.get("attributes"):
        aliases = {f"#tidegate{number}": name for number, name in enumerate(attributes)}
        request["ProjectionExpression"] = ", ".join(aliases)
        names |= aliases
    if names:
        request["ExpressionAttributeNames"] = names
    for name, key in (("index", "IndexName"), ("filter", "FilterExpression")):
        if options.get(name):
            request[key] = options[name]
    if place.cursor:
        request["ExclusiveStartKey"] = decode_cursor(place.cursor)
    found = exports.dynamodb.query(**request)
    rows = [
        write_exact({name: _json_value(_read.deserialize(value)) for name, value in item.items()})
        for item in found["Items"]
    ]
    last = found.get("LastEvaluatedKey")
    return page_body(rows, _cursor(last) if last else None)


def _cursor(last: Mapping[str, Any]) -> str:
    try:
        return encode_cursor(last)
    except TypeError as error:
        raise SourceBroken(
            "the table has a binary key: only tables whose keys are text or numbers can be exported"
        ) from error


def _storable(value: Any) -> Any:
    """Returns the value with decimals in place of floats, because boto3 refuses floats.

    The decimals have the digits that the caller wrote.
    """
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [_storable(each) for each in value]
    return {name: _storable(each) for name, each in value.items()} if isinstance(value, dict) else value


def _json_value(value: Any) -> Any:
    """Returns a DynamoDB value for JSON: numbers with all digits, bytes as base64, sets as sorted lists."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else Digits(str(value))
    if isinstance(value, Binary | bytes):
        return base64.b64encode(bytes(cast(Any, value))).decode()
    if isinstance(value, set):
        # Binary values cannot be compared.
        order = None if not any(isinstance(each, Binary) for each in value) else str
        return [_json_value(each) for each in sorted(value, key=order)]
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    return {name: _json_value(each) for name, each in value.items()} if isinstance(value, dict) else value


# --- athena query
# Rows of an Athena SQL query. Only reading statements are accepted, and the role cannot write tables.
#
# The query is started once per export, even if the step is repeated: its idempotency token is derived from the export's
# id. The snapshot is the execution's id, the cursor is Athena's.

# Athena's limit for one page.
MOST_ROWS = 1000
# How long an invocation waits for the query. It may run 900 s; the rest is for pulling.
SECONDS = 600.0
# How many failed queries of earlier attempts are skipped: the same token always returns the same query.
_FAILED_BEFORE = 4
_FAILED = ("FAILED", "CANCELLED")
_POLL_SECONDS = (0.5, 1.0, 2.0, 5.0)
# Tokens of SQL as Trino reads it. In particular, a comment ends at a line feed or a carriage return, and comments do
# not nest.
_TOKENS = re.compile(
    r"""(?P<blank>[ \t\r\n]++|--[^\r\n]*+|/\*(?>.*?\*/))
    |(?P<text>'(?:[^']|'')*+')
    |(?P<name>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`|[A-Za-z_][A-Za-z0-9_@:]*+)
    |(?P<number>(?:0[xXoObB][0-9A-Fa-f_]++|(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?+|\.[0-9][0-9_]*+)(?:[eE][+-]?[0-9]++)?+)(?!\w))
    |(?P<sign>[-+*%=<>!|(),.;?\[\]{}:@^$&~#\\]|/(?!\*))""",
    re.VERBOSE | re.DOTALL,
)
# Control characters that are not blanks in Trino: other parsers may end a line there.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]|\r(?!\n)")
_QUERIES, _READS = frozenset(["SELECT", "WITH", "VALUES", "TABLE"]), frozenset(["SHOW", "DESCRIBE"])
# Words that begin or contain a write. They are reserved in Trino, so a query has them as names only in quotes.
_WRITES = frozenset(["ALTER", "CREATE", "DEALLOCATE", "DELETE", "DROP", "EXECUTE", "INSERT", "INTO", "PREPARE"])
# Reserved words that end a list of tables: a comma after them is not between tables. LIMIT is not reserved, for
# instance, and may be the name of a table.
_AFTER_TABLES = frozenset(["SELECT", "VALUES", "WHERE", "HAVING", "UNION", "EXCEPT", "INTERSECT"])
_SORTED = frozenset(["GROUP", "ORDER"])
OWN_CATALOG = "awsdatacatalog"
_WHOLE, _EXACT = (
    frozenset(["tinyint", "smallint", "integer", "bigint"]),
    frozenset(["decimal", "double", "float", "real"]),
)


def reads_only(sql: str) -> bool:
    """Whether the SQL is a single statement that only reads, however Athena may read its lines and comments."""
    tokens = _tokens(sql)
    if tokens and tokens[-1] == ";":
        tokens.pop()
    if not tokens or ";" in tokens:
        return False
    verb = tokens[0].upper()
    return verb in _READS or (verb in _QUERIES and _WRITES.isdisjoint(map(str.upper, tokens)))


def foreign_table(sql: str, databases: Collection[str]) -> str | None:
    """Returns the first table, as written, that may be outside these databases. None if all are certainly inside.

    A name without a database is in the default database. A name that may be a table or a column counts as a table. So
    some allowed statements are refused, but no forbidden statement is accepted.
    """
    tokens = _tokens(sql)
    if not tokens or tokens[0].upper() not in _QUERIES:
        return tokens[0] if tokens else sql[:40]
    allowed = {name.lower() for name in databases}
    # For each open parenthesis: whether a comma in it is between tables.
    among_tables, in_function = [False], [False]
    before, at, is_table = "", 0, False
    while at < len(tokens):
        part, word, following = tokens[at], tokens[at].upper(), [*tokens[at + 1 : at + 2], ""][0].upper()
        at += 1
        if part in ("(", "["):
            among_tables.append(is_table and part == "(")
            # In EXTRACT(YEAR FROM t.day) and TRIM(x FROM t.name), FROM is not before a table.
            in_function.append(before in ("EXTRACT", "TRIM"))
        elif part in (")", "]"):
            if len(among_tables) == 1:
                return part
            among_tables.pop()
            in_function.pop()
            is_table = False
        elif part == ",":
            is_table = among_tables[-1]
        elif word == "FROM":
            # `a IS DISTINCT FROM b` has no table.
            if not in_function[-1] and before != "DISTINCT":
                among_tables[-1] = is_table = True
        elif word in ("JOIN", "TABLE"):
            is_table = True
        elif word in _AFTER_TABLES or (word in _SORTED and following == "BY"):
            among_tables[-1] = is_table = False
        elif _is_name(part) and word not in ("WITH", "LATERAL"):
            parts = [part]
            while tokens[at : at + 1] == ["."] and at + 1 < len(tokens) and _is_name(tokens[at + 1]):
                parts.append(tokens[at + 1])
                at += 2
            if is_table and (not _is_in(parts, allowed) or tokens[at : at + 1] == ["."]):
                return ".".join(parts)
            is_table = False
        elif not _is_name(part):
            is_table = False
        before = word
    return None


def _is_in(name: Sequence[str], databases: Collection[str]) -> bool:
    *places, _ = [part[1:-1] if part[0] in '"`' else part for part in map(str.lower, name)]
    if len(places) == 2 and places[0] == OWN_CATALOG:
        places = places[1:]
    return not places or (len(places) == 1 and places[0] in databases)


def _is_name(token: str) -> bool:
    return token[0] in '"`_' or token[0].isalpha()


def _tokens(sql: str) -> list[str]:
    """Returns the tokens of a statement, without comments and blanks. Empty if Trino might split it in another way."""
    found, at = list[str](), 0
    while at < len(sql):
        match = _TOKENS.match(sql, at)
        if match is None:
            return []
        if match.lastgroup != "blank":
            found.append(match[0])
        at = match.end()
    return [] if _CONTROLS.search(sql) else found


def athena_page(
    exports: Exports, options: Options, place: PagePlace, step: int, task_id: str, seconds: float | None
) -> bytes:
    """Returns a page of the result of Athena SQL. The first page starts the query and waits for its end."""
    execution = place.snapshot or _run(exports, options, task_id, seconds or SECONDS)
    request = {"QueryExecutionId": execution, "MaxResults": min(step, MOST_ROWS)}
    if place.cursor:
        request["NextToken"] = place.cursor
    answer = exports.athena.get_query_results(**request)
    found = answer["ResultSet"]
    columns = [(column["Name"], column.get("Type", "varchar")) for column in found["ResultSetMetadata"]["ColumnInfo"]]
    if len({name for name, _ in columns}) < len(columns):
        raise SourceBroken("the query gives two columns the same name: give every column its own name with AS")
    rows = found["Rows"]
    if not place.cursor and rows and _is_head(rows[0], columns):
        rows = rows[1:]
    shown = [
        write_exact({name: _value(cell, kind) for (name, kind), cell in zip(columns, row["Data"], strict=False)})
        for row in rows
    ]
    return page_body(shown, answer.get("NextToken"), execution)


def _run(exports: Exports, options: Options, task_id: str, seconds: float) -> str:
    """Starts the query, or finds it if it was started before, and waits for its end. Returns the execution's id.

    If the query failed in an earlier attempt, it is started again with another token.
    """
    token = digest(task_id, options["sql"], length=64)
    for _ in range(_FAILED_BEFORE):
        execution = _start(exports, options, token)
        if _state(exports, execution)["State"] not in _FAILED:
            break
        token = digest(token, execution, length=64)
    until, polls = exports.clock().timestamp() + seconds, 0
    while (status := _state(exports, execution))["State"] != "SUCCEEDED":
        if status["State"] in _FAILED:
            raise SourceBroken(
                f"Athena ended the query as {status['State']}: {str(status.get('StateChangeReason'))[:400]}"
            )
        if exports.clock().timestamp() >= until:
            raise FetchTimeout(
                f"the Athena query did not end within {seconds:g} s; the next attempt continues to wait for it"
            )
        exports.sleep(_POLL_SECONDS[min(polls, len(_POLL_SECONDS) - 1)])
        polls += 1
    return execution


def _start(exports: Exports, options: Options, token: str) -> str:
    context = {"Database": options.get("database"), "Catalog": options.get("catalog")}
    started = exports.athena.start_query_execution(
        QueryString=options["sql"],
        WorkGroup=options["workgroup"],
        QueryExecutionContext={name: value for name, value in context.items() if value},
        ClientRequestToken=token,
    )
    return str(started["QueryExecutionId"])


def _state(exports: Exports, execution: str) -> dict[str, Any]:
    found = exports.athena.get_query_execution(QueryExecutionId=execution)
    return dict(found["QueryExecution"]["Status"])


def _is_head(row: Mapping[str, Any], columns: list[tuple[str, str]]) -> bool:
    """Whether the row has the column names: Athena returns them as the first row of a SELECT."""
    return [cell.get("VarCharValue") for cell in row["Data"]] == [name for name, _ in columns]


def _value(cell: Mapping[str, str], kind: str) -> Any:
    text = cell.get("VarCharValue")
    if text is None:
        return None
    if kind == "boolean":
        return text == "true"
    if kind in _WHOLE:
        return int(text)
    if kind in _EXACT and re.fullmatch(r"-?\d+(\.\d+)?([eE]-?\d+)?", text):
        return Digits(text)
    return text


# --- sources
# Sources that are read without an HTTP endpoint: an S3 object, a DynamoDB query, Athena SQL.
#
# They have the same page interface as a URL, and return the same format, with cursors. They are allowed on two levels:
# parameters of the stack name the buckets, tables and the workgroup, and the functions' roles allow no others; a
# project's `read_from` names those that this project may read.

NOTHING = "-"
# AWS errors after which a retry may succeed.
_RETRYABLE = frozenset(
    [
        "InternalError",
        "InternalServerError",
        "InternalServerException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "ThrottlingException",
        "TooManyRequestsException",
    ]
)


# Which field names the resource that the operator allows.
_NAMED_BY = {"s3": "bucket", "dynamodb": "table", "athena": "workgroup"}


@dataclass(slots=True)
class AllowedSources:
    """The sources that the operator allows, as names or patterns, and the check of a project's grants.

    `-` allows none.
    """

    bucket: str
    table: str
    workgroup: str
    # This system's own table and bucket, which have the records and files of every project.
    own: frozenset[str]
    project_of: Callable[[str], Project]

    def check(self, project_id: str, source: Mapping[str, Any], field: str) -> None:
        """Raises SourceNotGranted unless the operator and the project's `read_from` allow reading this source."""
        kind = next(iter(source))
        self.require(project_id, source, [field, kind, _NAMED_BY[kind]])

    def require(self, project_id: str, source: Mapping[str, Any], place: Sequence[str]) -> None:
        """Raises SourceNotGranted unless this source may be read. `place`: the field of the body that the error names.

        A batch may give an S3 `prefix` in place of a `key`.
        """
        if detail := self._refusal(project_id, source):
            raise SourceNotGranted(detail, errors=[{"loc": ["body", *place], "msg": detail}])

    def _refusal(self, project_id: str, source: Mapping[str, Any]) -> str | None:
        kind, options = next(iter(source.items()))
        part = _NAMED_BY[kind]
        parameter, allowed = {
            "s3": ("SourceBucket", self.bucket),
            "dynamodb": ("SourceTable", self.table),
            "athena": ("SourceWorkgroup", self.workgroup),
        }[kind]
        name = str(options[part])
        if allowed == NOTHING or not fnmatchcase(name, allowed) or name in self.own:
            return f"the {part} {name} may not be read: an operator can allow it with the parameter {parameter}"
        if kind == "athena" and not reads_only(options["sql"]):
            # The order was checked, but a schedule may be older than the check.
            return "the statement is not one that only reads"
        if place := self._not_granted(project_id, kind, options):
            return (
                f"this project may not read {place}: an admin can allow it with read_from of PATCH /v1/projects/"
                "{project_id}"
            )
        return None

    def _not_granted(self, project_id: str, kind: str, options: Mapping[str, Any]) -> str | None:
        """Returns the part of the source that the project may not read; None if it may read all of it."""
        granted = self.project_of(project_id).read_from
        if kind == "athena":
            return _not_granted_by_athena(granted, options)
        if kind == "s3" and "prefix" in options:
            place = f"s3://{options['bucket']}/{options['prefix']}"
            # Only patterns that end in * grant all keys that follow the prefix.
            whole = (pattern for pattern in granted if pattern.endswith("*"))
            return None if any(fnmatchcase(place, pattern) for pattern in whole) else f"{place}*"
        s3 = kind == "s3"
        place = f"s3://{options['bucket']}/{options['key']}" if s3 else f"dynamodb://{options['table']}"
        return None if any(fnmatchcase(place, pattern) for pattern in granted) else place


def _not_granted_by_athena(granted: Sequence[str], options: Mapping[str, Any]) -> str | None:
    """Returns the part of a query that the project may not read; None if it may read all of it.

    The grant `athena://workgroup` covers all databases that the stack allows. The grant `athena://workgroup/database`
    covers one of them.
    """

    place = f"athena://{options['workgroup']}"
    if place in granted:
        return None
    databases = [each.removeprefix(f"{place}/") for each in granted if each.startswith(f"{place}/")]
    database, catalog = options.get("database"), options.get("catalog")
    if not databases or not database:
        return place
    if catalog and catalog.lower() != OWN_CATALOG:
        return f"{place} in the catalog {catalog}"
    if database.lower() not in map(str.lower, databases):
        return f"{place}/{database}"
    found = foreign_table(options["sql"], databases)
    return None if found is None else f"{found[:200]} in {place}"


_READERS = {"s3": s3_page, "dynamodb": dynamodb_page, "athena": athena_page}


def direct_page(
    exports: Exports,
    project_id: str,
    task_id: str,
    address: str,
    place: PagePlace,
    step: int,
    seconds: float | None = None,
) -> bytes:
    """Returns a page of a direct source, in the format of an HTTP source. `seconds`: the time limit, if any."""
    source = json.loads(address.removeprefix(DIRECT))
    kind, options = next(iter(source.items()))
    try:
        # Check again: the operator may have withdrawn the source since the order.
        exports.allowed_sources.check(project_id, source, "source")
    except SourceNotGranted as error:
        raise SourceBroken(error.detail) from error
    try:
        return _READERS[kind](exports, options, place, step, task_id, seconds)
    except ClientError as error:
        answer = error.response.get("Error", {})
        detail = f"page {place.page} of the source: {answer.get('Code')}: {str(answer.get('Message'))[:300]}"
        if answer.get("Code") in _RETRYABLE:
            raise ServiceUnavailable(detail) from error
        raise SourceBroken(detail) from error
    except BotoCoreError as error:
        raise ConnectionFailed(f"page {place.page} of the source: {error}") from error
