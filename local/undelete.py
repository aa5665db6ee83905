"""Restores deleted objects that a record still needs: `python -m local.undelete TABLE BUCKET [--try]`.

Use it after the table was restored to an earlier time. Objects that this earlier table refers to may have been deleted
since. The bucket keeps deleted objects for `DeletedObjectDays`. Uses the operator's credentials, because no function
may delete versions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from local.progress import say
from tidegate.app import App

_GROUP = 100


class Undeleted(NamedTuple):
    """The number of restored objects, and the keys of needed objects that cannot be restored.

    An object cannot be restored if no version of it is left."""

    restored: int
    lost: list[str]


def undelete(app: App, *, only_try: bool = False) -> Undeleted:
    """Restores the deleted objects whose records exist, by removing their delete markers.
    `only_try`: only counts them."""
    restored, lost = 0, []
    for owner in app.object_owners:
        deleted = _deleted(app.s3, app.settings.files_bucket, owner.prefix)
        while group := dict(islice(deleted, _GROUP)):
            for key in sorted(group.keys() - owner.orphans(group)):
                markers, has_version = group[key]
                if not has_version:
                    lost.append(key)
                    continue
                for marker in () if only_try else markers:
                    app.s3.delete_object(Bucket=app.settings.files_bucket, Key=key, VersionId=marker)
                restored += 1
    return Undeleted(restored, lost)


def _deleted(client: Any, bucket: str, prefix: str) -> Iterator[tuple[str, tuple[list[str], bool]]]:
    """Yields (key, (newest delete markers, whether a version is left)) for each deleted object."""
    markers: list[str] = []
    key, version, is_deleted = "", False, False
    for entry in _versions(client, bucket, prefix):
        if entry["Key"] != key:
            if is_deleted:
                yield key, (markers, version)
            key, markers, version, is_deleted = entry["Key"], [], False, False
        is_marker = "ETag" not in entry
        if entry["IsLatest"]:
            is_deleted = is_marker
        if is_marker and not version:
            markers.append(entry["VersionId"])
        version = version or not is_marker
    if is_deleted:
        yield key, (markers, version)


def _versions(client: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yields all versions and delete markers by key, the newest first.

    S3 lists versions and delete markers in this order too, but separately. The entries of one key may be on two pages,
    so the last key of a page is kept until the next page."""
    kept: list[dict[str, Any]] = []
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
        kept += [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        # In the same second, a marker counts as newer than a version: to remove one marker too many is harmless.
        kept.sort(key=lambda entry: "ETag" in entry)
        kept.sort(key=lambda entry: entry["LastModified"], reverse=True)
        kept.sort(key=lambda entry: (entry["Key"], not entry["IsLatest"]))
        last = kept[-1]["Key"] if kept else ""
        yield from (entry for entry in kept if entry["Key"] != last)
        kept = [entry for entry in kept if entry["Key"] == last]
    yield from kept


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.undelete", description=__doc__)
    parser.add_argument("table")
    parser.add_argument("bucket")
    parser.add_argument("--try", action="store_true", dest="only_try", help="change nothing: only count")
    given = parser.parse_args(arguments)
    os.environ |= {"TABLE_NAME": given.table, "FILES_BUCKET": given.bucket}
    done = undelete(App(), only_try=given.only_try)
    say(f"  {done.restored} objects {'would be' if given.only_try else 'were'} brought back.")
    for key in done.lost:
        say(f"  ✗ {key} has no version left")
    return 1 if done.lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
