"""Reads a source's list of files, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.errors import SourceBroken
from tidegate.http.client import SafeHttp
from tidegate.http.credentials import Credential
from tidegate.http.model import Limits, Reply
from tidegate.ingest.feeds.choice import chosen
from tidegate.ingest.feeds.entry import MAX_BYTES, MAX_ENTRIES, Entry, unique

# Ten thousand files are ten pages of an S3 listing, or a few dozen sitemaps.
MAX_PAGES = 50
LIMITS = Limits(total=120, max_bytes=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Selection:
    """How a source is read, which of its files are chosen, and their paths in the library."""

    format: str = "auto"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    file_path: str | None = None


@dataclass(frozen=True, slots=True)
class SourceList:
    """`entries` is None if the source answered 304. `etag` is None for lists of several pages."""

    entries: list[Entry] | None
    format: str = ""
    listed: int = 0
    etag: str | None = None


class SourceReader:
    def __init__(self, http: SafeHttp) -> None:
        self._http = http

    def read(
        self,
        project_id: str,
        url: str,
        selection: Selection,
        *,
        etag: str | None = None,
        credential: Credential | None = None,
        allow_private: bool = False,
        limits: Limits = LIMITS,
        on_page: Callable[[], None] = lambda: None,
    ) -> SourceList:
        # Imported here: the parsers take 17 ms, and the API needs them only for a preview.
        from tidegate.ingest.feeds.read import listing_of

        def get(page: str, headers: Mapping[str, str]) -> Reply:
            reply = self._http.send(
                "GET",
                page,
                headers=headers,
                credential=credential,
                allow_private=allow_private,
                limits=limits,
                project_id=project_id,
            )
            reply.raise_for_status()
            on_page()
            return reply

        first = get(url, {"if-none-match": etag} if etag else {})
        if first.status == 304:
            return SourceList(None, etag=etag)
        listing = listing_of(first.body, first.headers.get("content-type", ""), first.url, selection.format)
        entries, to_read, seen = list(listing.entries), deque(listing.more), {url, first.url}
        while to_read:
            page = to_read.popleft()
            if page in seen:
                continue
            seen.add(page)
            if len(seen) > MAX_PAGES + 2 or len(entries) > MAX_ENTRIES:
                raise SourceBroken(f"the source has more than {MAX_PAGES} pages or {MAX_ENTRIES} files: split it")
            reply = get(page, {})
            more = listing_of(reply.body, reply.headers.get("content-type", ""), reply.url, listing.format)
            entries += more.entries
            to_read += more.more
        found = unique(entries)
        taken = chosen(found, selection.include, selection.exclude, selection.file_path)
        return SourceList(taken, listing.format, len(found), None if listing.more else first.headers.get("etag"))
