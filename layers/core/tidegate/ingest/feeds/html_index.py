"""Directory indexes of web servers."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

from tidegate.common.ids import digest
from tidegate.errors import SourceBroken
from tidegate.files.model import path_fault
from tidegate.ingest.feeds.entry import MAX_ENTRIES, Entry, plain_name, resolved

# Indexes link a file several times, and sort links and folders are left out. More than this is no index.
_MOST_LINKS = 10 * MAX_ENTRIES


class _Links(HTMLParser):
    """Links, each with the text up to the next one, where web servers print the date and size."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            self.found.append((href, []))
            self._inside = True
            if len(self.found) > _MOST_LINKS:
                raise SourceBroken(f"the directory index has more than {_MOST_LINKS} links: split it")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "a"

    def handle_data(self, data: str) -> None:
        if self.found and not self._inside:
            self.found[-1][1].append(data)


def from_html(text: str, base: str) -> Iterator[Entry]:
    """The files below the index: no parent folder, no links that sort, no subfolders, no other sites."""
    parser = _Links()
    try:
        parser.feed(text)
    except AssertionError as error:
        # The standard library raises it for broken markup.
        raise SourceBroken(
            "the directory index is not valid HTML: name another `format`, or correct the page"
        ) from error
    here = urlsplit(base)
    folder = here.path.rsplit("/", 1)[0] + "/"
    for href, after in parser.found:
        url = resolved(base, href)
        if url is None:
            continue
        there = urlsplit(url)
        path = unquote(there.path)
        below = (there.scheme, there.netloc) == (here.scheme, here.netloc) and there.path.startswith(folder)
        if not below or there.query or there.path.endswith("/") or there.path == here.path or path_fault(path):
            continue
        name = plain_name(path.rsplit("/", 1)[-1]) or "file"
        yield Entry(url, path, name, digest(" ".join("".join(after).split()), length=32))
