"""Items that are objects of a bucket: the keys of a prefix, or an S3 inventory, stored as parts before the first call.

The parts are NDJSON, one line for an item, in the folder of the batch. A stored part is never changed. Each part of a
prefix begins after the last key of the previous part. So a function that dies loses only its current part. Two
functions that list at the same time store the same listing. The last object has the sizes of all parts, and marks the
listing as complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from botocore.exceptions import ClientError

from tidegate.aws.s3 import CHUNK
from tidegate.aws.table import code_of, status_of
from tidegate.batches.model import Batch, RowSource, bucket_and_key
from tidegate.batches.rows import LISTING_END, RowBucket, csv_records, unpacked
from tidegate.common.ids import iso
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from tidegate.batches import Batches

PART_BYTES = 8 * 1024 * 1024
# Longer than any line: a key has at most 1,024 bytes, and JSON writes a byte as six at most.
_TAIL_BYTES = 16 * 1024
LARGEST_MANIFEST = 16 * 1024 * 1024
# Which columns of an inventory an item gets, and by which names.
_NEEDED = {"Bucket": "bucket", "Key": "key", "Size": "size", "ETag": "etag"}
_OPTIONAL = {"LastModifiedDate": "last_modified", "VersionId": "version_id"}
_LINES_AT_ONCE = 1000


def check_grant(b: Batches, project_id: str, place: str, *, prefix: bool) -> None:
    """Raises SourceNotGranted unless the operator and the project's `read_from` allow reading this prefix or key."""
    bucket, key = bucket_and_key(place)
    b.require_source(project_id, {"s3": {"bucket": bucket, "prefix" if prefix else "key": key}}, ["source"])


def is_listed(b: Batches, folder: str) -> bool:
    """Whether all parts of the listing are stored."""
    return b.objects.size(folder + LISTING_END) is not None


def list_items(b: Batches, batch: Batch, source: RowSource, folder: str, may_continue: Callable[[], bool]) -> bool:
    """Stores the missing parts of the listing. Returns False if it had to stop before the last part.

    Raises Invalid if the prefix or the inventory cannot be read. No item is called before the listing is complete.
    """
    place = source.s3_url or ""
    # Check again: the grant may have been withdrawn since the batch was created.
    check_grant(b, batch.project_id, place, prefix=source.s3_prefix is not None)
    if source.s3_prefix:
        return _store_prefix(b, place, folder, may_continue)
    return _store_inventory(b, batch.project_id, place, folder, may_continue)


def _part_key(folder: str, number: int) -> str:
    return f"{folder}{number:07d}.ndjson"


def _part_sizes(objects: RowBucket, folder: str) -> list[int]:
    return [size for key, size in objects.sized(folder) if key.endswith(".ndjson")]


def _store_end(b: Batches, folder: str, sizes: list[int]) -> bool:
    b.bucket.put_new(folder + LISTING_END, json.dumps({"sizes": sizes}).encode())
    return True


def _line(item: Mapping[str, Any]) -> bytes:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _refusals(place: str) -> Iterator[None]:
    """Raises Invalid in place of S3's error if S3 refuses to read the source and a retry would not help."""
    try:
        yield
    except ClientError as error:
        if status_of(error) not in (301, 400, 403, 404):
            raise
        # The message of AWS may name the function's role.
        raise Invalid(f"{place} cannot be read: {code_of(error)}") from error


# --- prefix


def _store_prefix(b: Batches, place: str, folder: str, may_continue: Callable[[], bool]) -> bool:
    while may_continue():
        # Continue from what is stored, not from what this function listed: another one may have stored this part.
        sizes = _part_sizes(b.objects, folder)
        data = _next_part(b, place, _last_key(b.objects, folder, sizes))
        if not data:
            return _store_end(b, folder, sizes)
        b.bucket.put_new(_part_key(folder, len(sizes)), data)
    return False


def _last_key(objects: RowBucket, folder: str, sizes: list[int]) -> str | None:
    if not sizes:
        return None
    tail = objects.span(_part_key(folder, len(sizes) - 1), max(0, sizes[-1] - _TAIL_BYTES), sizes[-1])
    return str(json.loads(tail.rstrip(b"\n").rpartition(b"\n")[2])["key"])


def _next_part(b: Batches, place: str, after: str | None) -> bytes:
    """Returns the lines of the keys that follow the key `after`, in S3's order. Empty if there are no more keys."""
    (bucket, prefix), data = bucket_and_key(place), bytearray()
    while len(data) < PART_BYTES:
        begin: Any = {} if after is None else {"StartAfter": after}
        with _refusals(place):
            page = b.s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **begin)
        for entry in page.get("Contents", []):
            after = entry["Key"]
            fields = {"bucket": bucket, "key": after, "size": entry["Size"], "etag": entry["ETag"].strip('"')}
            data += _line(fields | {"last_modified": iso(entry["LastModified"])})
        if not page.get("IsTruncated"):
            break
    return bytes(data)


# --- inventory


def _store_inventory(b: Batches, project_id: str, place: str, folder: str, may_continue: Callable[[], bool]) -> bool:
    """Stores one part for each file of the inventory.

    A part may be stored twice, with the same content: the manifest has the MD5 of the file.
    """
    bucket, _ = bucket_and_key(place)
    columns, files = _read_manifest(_stored_manifest(b, place, folder), bucket)
    done = len(_part_sizes(b.objects, folder))
    for number, file in enumerate(files[done:], done):
        if not may_continue():
            return False
        file_place = f"s3://{bucket}/{file['key']}"
        check_grant(b, project_id, file_place, prefix=False)
        with _refusals(file_place):
            body = b.s3.get_object(Bucket=bucket, Key=file["key"])["Body"]
        lines = _inventory_lines(body.iter_chunks(CHUNK), columns, file)
        b.objects.stream(_part_key(folder, number), lines, "application/x-ndjson")
    return _store_end(b, folder, _part_sizes(b.objects, folder))


def _stored_manifest(b: Batches, place: str, folder: str) -> bytes:
    """Returns the manifest as the first function read it, because all parts must belong to the same manifest."""
    stored = folder + "manifest.json"
    if (found := b.objects.get(stored)) is not None:
        return found
    bucket, key = bucket_and_key(place)
    with _refusals(place):
        answer = b.s3.get_object(Bucket=bucket, Key=key)
    if answer["ContentLength"] > LARGEST_MANIFEST:
        raise Invalid(f"the manifest has {answer['ContentLength']:,} bytes; {LARGEST_MANIFEST:,} are read at most")
    b.bucket.put_new(stored, answer["Body"].read())
    return b.objects.get(stored) or b""


def _read_manifest(data: bytes, bucket: str) -> tuple[list[str], list[dict[str, str]]]:
    """Returns (names of the columns, files). Each file has `key` and `MD5checksum`."""
    try:
        manifest = json.loads(data)
        form, version = manifest["fileFormat"], manifest["version"]
        destination = manifest["destinationBucket"].rpartition(":")[2]
        columns = [name.strip() for name in manifest["fileSchema"].split(",")]
        files = [{"key": str(file["key"]), "MD5checksum": str(file["MD5checksum"])} for file in manifest["files"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid("s3_inventory is not the manifest.json of an S3 inventory") from error
    if version != "2016-11-30":
        raise Invalid(f"the inventory has the version {str(version)[:50]!r}: only 2016-11-30 can be read")
    if form != "CSV":
        raise Invalid(f"the inventory is in the format {str(form)[:50]}: only CSV can be read; ORC and Parquet cannot")
    if destination != bucket:
        raise Invalid("the files of the inventory are not in the bucket of its manifest: name the original manifest")
    if missing := [name for name in _NEEDED if name not in columns]:
        raise Invalid(f"the inventory has no column {', '.join(missing)}: add it to the inventory's configuration")
    return columns, files


def _inventory_lines(chunks: Iterator[bytes], columns: list[str], file: Mapping[str, str]) -> Iterator[bytes]:
    """Yields the lines of one part.

    Raises Invalid before the last lines if the MD5 of the file is not the MD5 in the manifest.
    """
    digest = hashlib.md5(usedforsecurity=False)

    def digested() -> Iterator[bytes]:
        for chunk in chunks:
            digest.update(chunk)
            yield chunk

    lines: list[bytes] = []
    for values in csv_records(unpacked(digested())):
        if len(values) != len(columns):
            raise Invalid(f"a row of {file['key']} has {len(values)} values for {len(columns)} columns")
        row = dict(zip(columns, values, strict=True))
        if row.get("IsDeleteMarker") != "true":
            lines.append(_line(_inventory_item(row, file["key"])))
        if len(lines) >= _LINES_AT_ONCE:
            yield b"".join(lines)
            lines.clear()
    if digest.hexdigest() != file["MD5checksum"].lower():
        raise Invalid(f"{file['key']} is not the file that the inventory's manifest names: its MD5 differs")
    yield b"".join(lines)


def _inventory_item(row: Mapping[str, str], file_key: str) -> dict[str, Any]:
    item: dict[str, Any] = {name: row[column] for column, name in _NEEDED.items()}
    try:
        item["key"] = unquote_plus(row["Key"], errors="strict")
        item["size"] = int(row["Size"]) if row["Size"] else None
    except ValueError as error:
        raise Invalid(f"a row of {file_key} has a key or a size that cannot be read: {error}"[:500]) from error
    return item | {name: row[column] for column, name in _OPTIONAL.items() if row.get(column)}
