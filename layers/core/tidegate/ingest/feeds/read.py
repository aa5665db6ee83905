"""Parses a subscription's list of files, in any of the known formats."""

from __future__ import annotations

import re
import zlib

from tidegate.errors import SourceBroken
from tidegate.ingest.feeds.checksums import from_sums, looks_like_sums
from tidegate.ingest.feeds.entry import MAX_BYTES, Listing, unique
from tidegate.ingest.feeds.html_index import from_html
from tidegate.ingest.feeds.json_list import from_json
from tidegate.ingest.feeds.text import decoded
from tidegate.ingest.feeds.xml_feeds import ROOTS, from_xml

FORMATS = ("auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap")
_XML = frozenset({"rss", "atom", "s3", "sitemap"})
_TAG = re.compile(r"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")


def listing_of(body: bytes, content_type: str, base: str, format: str = "auto") -> Listing:
    """The entries. SourceBroken if the source has none of the known formats, or not the named one."""
    text = decoded(_unpacked(body), content_type)
    kind = _kind(text, content_type) if format == "auto" else format
    if kind in _XML:
        return from_xml(text, base, kind)
    if kind == "xml":
        return from_xml(text, base, "auto")
    read = {"json": from_json, "html": from_html, "sums": from_sums}[kind]
    return Listing(kind, unique(read(text, base)))


def _unpacked(body: bytes) -> bytes:
    """Unpacks gzip: sitemaps are often stored as .xml.gz, and no header says so."""
    if not body.startswith(b"\x1f\x8b"):
        return body
    try:
        found = zlib.decompressobj(wbits=31).decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise SourceBroken("the source looks like gzip, but cannot be unpacked: pack it again") from error
    if len(found) > MAX_BYTES:
        raise SourceBroken(f"the source unpacks to more than {MAX_BYTES:,} bytes: split it")
    return found


def _kind(text: str, content_type: str) -> str:
    start, declared = text.lstrip()[:1], content_type.lower()
    if start == "<":
        name = _root_name(text)
        if name in ROOTS:
            return ROOTS[name]
        is_xml = text.lstrip().startswith("<?xml") or ("xml" in declared and "html" not in declared)
        return "xml" if is_xml and name != "html" else "html"
    if "html" in declared:
        return "html"
    if start in ("[", "{") or "json" in declared:
        return "json"
    if looks_like_sums(text):
        return "sums"
    shown = content_type.partition(";")[0].strip()[:80] or "missing"
    raise SourceBroken(
        f"the source's format is unknown (its content type is {shown}): it must be one of {', '.join(FORMATS[1:])}"
    )


def _root_name(text: str) -> str:
    """The name of the first element after the declaration, comments and DOCTYPE; empty if there is none."""
    place = 0
    while True:
        rest = text[place : place + 4096].lstrip()
        place = text.find(rest[:1], place) if rest else len(text)
        ends = next((end for start, end in _SKIPPED if rest.startswith(start)), None)
        if ends is None:
            found = _TAG.match(rest)
            return found[1].lower() if found else ""
        if rest.startswith("<!DOCTYPE") and "[" in rest.partition(">")[0]:
            ends = "]"
        end = text.find(ends, place)
        if end < 0:
            return ""
        place = end + len(ends)
        if ends == "]":
            place = max(place, text.find(">", place) + 1)


_SKIPPED = (("<?", "?>"), ("<!--", "-->"), ("<!", ">"))
