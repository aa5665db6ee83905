"""Which of the listed files a subscription downloads, and their paths in the library."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from tidegate.common.http_dates import read_date
from tidegate.files.model import path_fault
from tidegate.ingest.feeds.entry import Entry, plain_name

FIELDS = ("path", "dir", "name", "stem", "ext", "host", "title", "year", "month", "day")
_FIELD = re.compile(r"\{(\w*)\}")


def template_fault(template: str) -> str | None:
    """Why a naming template is refused; None if it is fine."""
    unknown = [name for name in _FIELD.findall(template) if name not in FIELDS]
    if unknown:
        return f"{{{unknown[0]}}} is not a field; the fields are {', '.join(f'{{{name}}}' for name in FIELDS)}"
    if not _FIELD.search(template):
        return "has no field, so all files would get the same path: add one, such as {name} for the file's name"
    return path_fault(template)


def chosen(
    entries: Sequence[Entry], include: Sequence[str] = (), exclude: Sequence[str] = (), template: str | None = None
) -> list[Entry]:
    """A glob with a slash is matched against the path, one without against the name."""
    taken = (entry for entry in entries if not include or _matches(entry, include))
    kept = (entry for entry in taken if not _matches(entry, exclude))
    return [_placed(entry, template) if template else entry for entry in kept]


def _matches(entry: Entry, globs: Sequence[str]) -> bool:
    return path_matches(entry.path, globs, entry.name)


def path_matches(path: str, globs: Sequence[str], name: str | None = None) -> bool:
    """A glob with a slash is matched against the path, one without against the name."""
    last = name or posixpath.basename(path)
    return any(fnmatchcase(path if "/" in glob else last, glob) for glob in globs)


def _placed(entry: Entry, template: str) -> Entry:
    """The entry with the path that the template makes; unchanged if that is not a valid path."""
    stem, ext = posixpath.splitext(entry.name)
    date = _date(entry.published)
    values = {
        "path": entry.path.strip("/"),
        "dir": posixpath.dirname(entry.path).strip("/"),
        "name": entry.name,
        "stem": stem,
        "ext": ext.removeprefix("."),
        "host": plain_name(urlsplit(entry.url).hostname or "") or "host",
        "title": plain_name(entry.title or "") or stem,
        "year": f"{date:%Y}" if date else "0000",
        "month": f"{date:%m}" if date else "00",
        "day": f"{date:%d}" if date else "00",
    }
    path = _FIELD.sub(lambda field: values[field[1]], template)
    path = re.sub(r"/{2,}", "/", path)
    return entry if path_fault(path) else replace(entry, path=path)


def _date(text: str | None) -> datetime | None:
    given = (text or "").strip()
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        return read_date(given)
