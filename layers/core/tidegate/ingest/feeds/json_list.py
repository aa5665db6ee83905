"""JSON lists of files: plain ones, JSON Feed, and the releases of a GitHub repository."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from tidegate.common.ids import digest
from tidegate.common.json_input import read_json
from tidegate.errors import SourceBroken
from tidegate.files.model import path_fault
from tidegate.ingest.feeds.entry import LARGEST, MAX_ENTRIES, Entry, plain_name, resolved, sha256_in

_VERSION_FIELDS = ("signature", "sha256", "digest", "etag", "size", "last_modified", "updated_at", "version")

# A hundred for each file. Each takes 30 times as much memory as text, so a page of nothing else would not fit.
_MOST_OBJECTS = 100 * MAX_ENTRIES


def from_json(text: str, base: str) -> Iterator[Entry]:
    if text.count("{") + text.count("[") > _MOST_OBJECTS:
        raise SourceBroken(f"the JSON has more than {_MOST_OBJECTS} objects and lists: split it")
    try:
        listed = read_json(text)
    except ValueError as error:
        raise SourceBroken("the list of files is not valid JSON: correct it, or name another `format`") from error
    for index, item in enumerate(_files(listed)):
        described = {"url": item} if isinstance(item, str) else item
        if not isinstance(described, Mapping) or not isinstance(described.get("url"), str):
            raise SourceBroken(f'entry {index} of the list has no url: write {{"url": "https://…"}} or a plain URL')
        yield _described(described, base, index)


def _files(listed: Any) -> Iterator[Any]:
    if isinstance(listed, dict) and isinstance(listed.get("assets"), list):
        listed = [listed]
    if isinstance(listed, dict):
        feed = str(listed.get("version", "")).startswith("https://jsonfeed.org/")
        listed = listed.get("items" if feed else "files")
    if not isinstance(listed, list):
        raise SourceBroken('the JSON must be a list of files, or an object such as {"files": […]}')
    for item in listed:
        if isinstance(item, Mapping) and isinstance(item.get("assets"), list):
            yield from map(_release_asset, item["assets"])
        elif isinstance(item, Mapping) and isinstance(item.get("attachments"), list):
            yield from map(_attachment, item["attachments"])
        else:
            yield item


def _release_asset(asset: Any) -> Any:
    """An asset of a GitHub release. Its `url` leads to a description, not to the file."""
    if not isinstance(asset, Mapping) or "browser_download_url" not in asset:
        return asset
    return {**asset, "url": asset["browser_download_url"]}


def _attachment(item: Any) -> Any:
    return {**item, "size": item.get("size_in_bytes")} if isinstance(item, Mapping) else item


def _described(item: Mapping[str, Any], base: str, index: int) -> Entry:
    url = resolved(base, item["url"])
    if url is None:
        raise SourceBroken(f"the url of entry {index} of the list cannot be parsed: {item['url'][:200]!r}")
    path = item.get("path") or unquote(urlsplit(url).path)
    if not isinstance(path, str) or path_fault(path):
        raise SourceBroken(f"entry {index} of the list: path {path_fault(str(path)) or 'is not text'}")
    size = item.get("size")
    known_size = size if type(size) is int and 0 <= size <= LARGEST else None
    signature = next(filter(None, (sha256_in(item.get(name)) for name in ("signature", "sha256", "digest"))), None)
    version = [str(item.get(name, "")) for name in _VERSION_FIELDS]
    name = plain_name(item.get("name")) or plain_name(posixpath.basename(path.rstrip("/"))) or "file"
    title = item.get("title")
    return Entry(
        url, path, name, digest(*version, length=32), signature, known_size, title if isinstance(title, str) else None
    )
