"""One file that a source lists."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from tidegate.common.ids import digest
from tidegate.errors import SourceBroken
from tidegate.files.model import path_fault

MAX_ENTRIES = 10_000
# The most bytes of one page of a list.
MAX_BYTES = 32 * 1024 * 1024
LONGEST_NAME = 255
# Longer than any URL that servers accept. Each entry of a list is resolved against the base, which may be as long.
LONGEST_URL = 8192
LARGEST = 5 * 1024**4
_SHA_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Entry:
    """`fingerprint` changes when the file changes, as far as the list shows it."""

    url: str
    path: str
    name: str
    fingerprint: str
    signature: str | None = None
    size: int | None = None
    title: str | None = None
    # As in the source: an RFC 822 or ISO 8601 date.
    published: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of one answer, and the URLs of further pages of the same list."""

    format: str
    entries: list[Entry]
    more: list[str] = field(default_factory=list)


def unique(entries: Iterable[Entry]) -> list[Entry]:
    """One entry for each URL: the last one. SourceBroken as soon as there are more than MAX_ENTRIES."""
    by_url: dict[str, Entry] = {}
    for entry in entries:
        by_url[entry.url] = entry
        if len(by_url) > MAX_ENTRIES:
            raise SourceBroken(f"the source lists more than {MAX_ENTRIES} files: split it")
    return list(by_url.values())


def entry_at(
    base: str,
    link: str,
    *version: object,
    size: int | None = None,
    signature: str | None = None,
    title: str | None = None,
    published: str | None = None,
) -> Entry | None:
    """The file behind a link. `version` has values that differ between its versions. None if its path is not valid."""
    url = resolved(base, link.strip())
    if url is None:
        return None
    path = unquote(urlsplit(url).path) or "/"
    if path_fault(path):
        return None
    name = plain_name(posixpath.basename(path.rstrip("/"))) or "file"
    fingerprint = digest(*(str(one) for one in version), str(size), str(signature), length=32)
    known_size = size if size is not None and 0 <= size <= LARGEST else None
    return Entry(url, path, name, fingerprint, signature, known_size, title, published)


def resolved(base: str, link: str) -> str | None:
    """The link as a URL; None if it is not a valid one."""
    if len(link) > LONGEST_URL:
        return None
    try:
        url = urldefrag(urljoin(base, link)).url
        url.encode()
        urlsplit(url)
    except ValueError:
        return None
    return url


def plain_name(value: object) -> str:
    """A valid file name: without slashes and control characters. Empty if nothing is left."""
    name = value if isinstance(value, str) else ""
    kept = "".join(char for char in name if ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF)
    kept = kept.replace("/", "_").replace("\\", "_")[:LONGEST_NAME]
    return "" if kept in (".", "..") else kept


def sha256_in(text: object) -> str | None:
    """The SHA-256 in `sha256:…` or in 64 hexadecimal digits; None if the text is neither."""
    found = str(text or "").strip().lower().removeprefix("sha256:")
    return found if len(found) == 64 and set(found) <= _SHA_DIGITS else None
