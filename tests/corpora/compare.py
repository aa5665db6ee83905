"""Compares the entries that our reader finds in a feed with those of another parser."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

from tidegate.errors import SourceBroken
from tidegate.ingest.feeds import listing_of, resolved

BASE = "http://127.0.0.1:8097/folder/feed.xml"
_COMMENT = re.compile(rb"<!--(.*?)-->", re.S)
_HEADER = re.compile(r"^\s*Header:\s*([\w-]+):\s*(.*)$", re.M | re.I)


@dataclass
class Tally:
    name: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        total = sum(self.counts.values())
        told = "\n".join(f"  {count:5}  {what}" for what, count in self.counts.most_common())
        return "\n".join([f"{self.name}: {total} feeds", told, *(f"  wrong: {line}" for line in self.wrong)])


def feedparser_corpus(root: Path) -> Tally:
    import feedparser  # type: ignore[import-not-found]

    tally = Tally("feedparser")
    for path in sorted(root.rglob("*.xml")):
        body = path.read_bytes()
        headers = _headers(body)
        base = urljoin(BASE, headers.get("content-location", ""))
        content_type = headers.get("content-type", "application/xml")
        theirs = feedparser.parse(body, response_headers={"content-location": base, "content-type": content_type})
        expected = _unique(base, _files(theirs.entries) or _pages(theirs.entries, theirs.version))
        _compare(tally, str(path.relative_to(root)), body, content_type, base, expected, broken=bool(theirs.bozo))
    return tally


def _headers(body: bytes) -> dict[str, str]:
    """The HTTP headers that the comment of a test feed prescribes."""
    found = _COMMENT.search(body)
    return {name.lower(): value.strip() for name, value in _HEADER.findall(found[1].decode("latin-1") if found else "")}


def _files(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        attached = [link.get("href") for link in entry.get("enclosures", [])]
        attached += [content.get("src") for content in entry.get("content", [])]
        media = [content.get("url") for content in entry.get("media_content", [])]
        found += [url for url in attached if url] or [url for url in media if url]
    return found


def _pages(entries: Iterable[Mapping[str, Any]], version: str) -> Iterator[str]:
    """The links of entries, without Atom ids: feedparser takes them for links (RFC 4287, 4.2.6 does not)."""
    for entry in entries:
        if entry.get("link") and (entry.get("links") or not version.startswith("atom")):
            yield entry["link"]


def podcastparser_corpus(root: Path) -> Tally:
    """Compares enclosures only, since its expectations name no pages; feeds without enclosures are left out."""
    tally = Tally("podcastparser")
    for path in sorted(root.glob("*.rss")):
        base = f"file://tests/data/{path.name}"
        episodes = json.loads(path.with_suffix(".json").read_text()).get("episodes", [])
        expected = _unique(base, [file["url"] for episode in episodes for file in episode["enclosures"]])
        if expected and path.stem != "max_episodes":
            _compare(tally, path.name, path.read_bytes(), "application/rss+xml", base, expected, broken=False)
    return tally


def _unique(base: str, urls: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(resolved(base, url) or urldefrag(urljoin(base, url)).url for url in urls))


def _compare(
    tally: Tally, name: str, body: bytes, content_type: str, base: str, expected: list[str], *, broken: bool
) -> None:
    try:
        found = [entry.url for entry in listing_of(body, content_type, base).entries]
    except SourceBroken as error:
        reason = _reason(error.detail)
        tally.counts[f"refused: {reason}"] += 1
        if not broken and reason == "not well-formed":
            tally.wrong.append(f"{name}: refused, though it is well-formed: {error.detail}")
        return
    same = sorted(found) == sorted(expected)
    what = "the same files and links" if expected else "no entry, as expected"
    tally.counts[what if same else "others"] += 1
    if not same:
        tally.wrong.append(f"{name}: {found} instead of {expected}")


def _reason(detail: str) -> str:
    if "<CHANNEL>" in detail:
        return "CDF, a format of 1997"
    return "declares entities" if "declares entities" in detail else "not well-formed"
