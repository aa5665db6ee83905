"""Rows of an S3 object, CSV or JSON lines, read by byte ranges.

The cursor is the offset of the next row. The snapshot is the object's ETag: the export fails if the object is replaced
while it is read, instead of mixing two contents.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from botocore.exceptions import ClientError

from tidegate.errors import SourceBroken
from tidegate.exports.direct.page_body import page_body
from tidegate.exports.source_json import write_exact
from tidegate.exports.source_page import Place

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

WINDOW = 1024 * 1024
# Several copies of a page have to fit into memory.
MOST_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LINE_END, _CSV_LINE_END = re.compile(rb"\n"), re.compile(rb"\r\n?|\n")
_lines = msgspec.json.Decoder(dict[str, msgspec.Raw])


class S3Objects:
    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._heads: dict[tuple[str, ...], tuple[list[str], int]] = {}

    def page(self, options: Mapping[str, Any], place: Place, step: int, _task_id: str) -> bytes:
        reading = self._reading(options, place)
        head, begin = self._head(options, reading) if options["format"] == "csv" else (None, None)
        offset = int(place.cursor) if place.cursor else reading.begin() if begin is None else begin
        rows, end = reading.records(offset, step)
        next_cursor = str(end) if end < reading.size else None
        encoded = _csv_rows(rows, head, options, offset) if head is not None else _json_lines(rows, offset)
        return page_body(encoded, next_cursor, reading.snapshot)

    def _reading(self, options: Mapping[str, Any], place: Place) -> _Reading:
        if place.snapshot:
            etag, _, size = place.snapshot.rpartition("/")
        else:
            found = self._client.head_object(Bucket=options["bucket"], Key=options["key"])
            etag, size = found["ETag"], str(found["ContentLength"])
        return _Reading(self._client, options, etag, int(size))

    def _head(self, options: Mapping[str, Any], reading: _Reading) -> tuple[list[str], int]:
        """The column names, and the offset of the first row."""
        how = str(options.get("delimiter")), str(options.get("encoding"))
        version = str(options["bucket"]), str(options["key"]), reading.etag, *how
        if version not in self._heads:
            begin = reading.begin()
            records, end = reading.records(begin, 1)
            names = _fields(records[0], options, begin) if records else []
            if len(set(names)) != len(names):
                raise SourceBroken("the header row of the object names a column twice: give every column its own name")
            self._heads[version] = names, end
        return self._heads[version]


class _Reading:
    """Reads one version of an object."""

    def __init__(self, client: S3Client, options: Mapping[str, Any], etag: str, size: int) -> None:
        self._client, self._options = client, options
        self.etag, self.size = etag, size
        self.snapshot = f"{etag}/{size}"

    def begin(self) -> int:
        return len(_BOM) if self._bytes(0, len(_BOM)) == _BOM else 0

    def records(self, offset: int, most: int) -> tuple[list[bytes], int]:
        """Returns up to `most` whole records from `offset` on, without blank lines, and the offset after them."""
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
    """Returns whole records and how many bytes they take. A CSV line break within quotes does not end a record."""
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
    # The default limit is 128 KB; `records` bounds them already.
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
