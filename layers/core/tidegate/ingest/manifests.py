"""What a subscription's source lists: a JSON list, or an HTML index of links."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from tidegate.common.ids import digest
from tidegate.common.json_input import read_json
from tidegate.errors import SourceBroken
from tidegate.files.model import path_fault

MAX_ENTRIES = 10_000
LONGEST_NAME = 255
LARGEST = 5 * 1024**4
_SHA_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Entry:
    """`fingerprint` changes when the file does, as far as the listing tells."""

    url: str
    path: str
    name: str
    fingerprint: str
    signature: str | None = None
    size: int | None = None


def entries_of(body: bytes, content_type: str, base: str) -> list[Entry]:
    text = body.decode("utf-8", "replace")
    if "html" in content_type.lower() or text.lstrip()[:1] == "<":
        found = list(_from_html(text, base))
    else:
        found = list(_from_json(text, base))
    unique = {entry.url: entry for entry in found}
    if len(unique) > MAX_ENTRIES:
        raise SourceBroken(f"the manifest lists {len(unique)} files, {MAX_ENTRIES} at most")
    return list(unique.values())


def _from_json(text: str, base: str) -> Iterator[Entry]:
    try:
        listed = read_json(text)
    except ValueError as error:
        raise SourceBroken("the manifest is neither a JSON list nor an HTML index") from error
    if isinstance(listed, dict):
        listed = listed.get("files")
    if not isinstance(listed, list):
        raise SourceBroken("the manifest holds no list of files")
    for index, item in enumerate(listed):
        described = {"url": item} if isinstance(item, str) else item
        if not isinstance(described, Mapping) or not isinstance(described.get("url"), str):
            raise SourceBroken(f"entry {index} of the manifest names no url")
        yield _described(described, base, index)


def _described(item: Mapping[str, Any], base: str, index: int) -> Entry:
    url = _resolved(base, item["url"])
    if url is None:
        raise SourceBroken(f"entry {index} of the manifest names no readable url")
    path = item.get("path") or unquote(urlsplit(url).path)
    if not isinstance(path, str) or path_fault(path):
        raise SourceBroken(f"entry {index} of the manifest: path {path_fault(str(path)) or 'is not text'}")
    size = item.get("size")
    known_size = size if type(size) is int and 0 <= size <= LARGEST else None
    signature = str(item.get("signature") or item.get("sha256") or "").lower()
    known = len(signature) == 64 and set(signature) <= _SHA_DIGITS
    told = [str(item.get(name, "")) for name in ("signature", "sha256", "etag", "size", "last_modified", "version")]
    name = _plain_name(item.get("name")) or _plain_name(posixpath.basename(path.rstrip("/"))) or "file"
    return Entry(url, path, name, digest(*told, length=32), signature if known else None, known_size)


def _plain_name(value: object) -> str:
    """As a caller may send it: no path, no control characters. Empty where nothing is left."""
    name = value if isinstance(value, str) else ""
    kept = "".join(char for char in name if ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF)
    kept = kept.replace("/", "_").replace("\\", "_")[:LONGEST_NAME]
    return "" if kept in (".", "..") else kept


def _resolved(base: str, link: str) -> str | None:
    try:
        url = urldefrag(urljoin(base, link)).url
        url.encode()
    except ValueError:
        return None
    return url


class _Links(HTMLParser):
    """Links, each with the text up to the next: web servers print date and size there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            self.found.append((href, []))
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "a"

    def handle_data(self, data: str) -> None:
        if self.found and not self._inside:
            self.found[-1][1].append(data)


def _from_html(text: str, base: str) -> Iterator[Entry]:
    """Files below the index only: no parent, no sorting links, no folders, no other sites."""
    parser = _Links()
    try:
        parser.feed(text)
    except AssertionError as error:
        # How the standard library says that it has met broken markup.
        raise SourceBroken("the index is not HTML") from error
    here = urlsplit(base)
    folder = here.path.rsplit("/", 1)[0] + "/"
    for href, after in parser.found:
        url = _resolved(base, href)
        if url is None:
            continue
        there = urlsplit(url)
        path = unquote(there.path)
        below = (there.scheme, there.netloc) == (here.scheme, here.netloc) and there.path.startswith(folder)
        if not below or there.query or there.path.endswith("/") or there.path == here.path or path_fault(path):
            continue
        name = _plain_name(posixpath.basename(path)) or "file"
        yield Entry(url, path, name, digest(" ".join("".join(after).split()), length=32))
