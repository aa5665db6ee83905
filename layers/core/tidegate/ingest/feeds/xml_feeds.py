"""RSS (podcasts too), Atom, S3 listings and sitemaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus, urlencode, urlsplit, urlunsplit

from tidegate.common.json_input import whole_number
from tidegate.errors import SourceBroken
from tidegate.ingest.feeds.entry import LONGEST_URL, MAX_ENTRIES, Entry, Listing, entry_at, resolved, unique
from tidegate.ingest.feeds.xml_tree import below, local, parsed

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Read for each file of an item. A URL that is cut here is too long anyway.
_LONGEST_TEXT = 2 * LONGEST_URL
_XML_BASE = "{http://www.w3.org/XML/1998/namespace}base"
# The format of each root element.
ROOTS = {
    "rss": "rss",
    "rdf": "rss",
    "feed": "atom",
    "listbucketresult": "s3",
    "urlset": "sitemap",
    "sitemapindex": "sitemap",
}


def from_xml(text: str, base: str, wanted: str) -> Listing:
    root = parsed(text)
    name = local(root).lower()
    found = ROOTS.get(name)
    if found is None or wanted not in ("auto", found):
        known = ", ".join(sorted(set(ROOTS.values()))) if wanted == "auto" else wanted
        raise SourceBroken(f"the source is XML with the root element <{local(root)[:60]}>; expected {known}")
    base = resolved(base, root.get(_XML_BASE, "")) or base
    if found == "s3":
        return _s3(root, base)
    if found == "sitemap":
        return _sitemap(root, base)
    linked = _rss if found == "rss" else _atom
    files = unique(entry for entry, attached in linked(root, base) if attached)
    # A feed without any attached file is a list of pages, or of links to files.
    return Listing(found, files or unique(entry for entry, _ in linked(root, base)))


def _text(element: Element, *names: str) -> str:
    """The text of the first of these children that has any."""
    found: dict[str, str] = {}
    for child in element:
        if text := (child.text or "").strip()[:_LONGEST_TEXT]:
            found.setdefault(local(child).lower(), text)
    return next((found[name] for name in names if name in found), "")


def _size(text: Any) -> int | None:
    return whole_number(str(text or "").strip()) or None


def _rss(root: Element, base: str) -> Iterator[tuple[Entry, bool]]:
    for item in (element for element in below(root, "item") if local(element).lower() == "item"):
        title, date = _text(item, "title"), _text(item, "pubdate", "date", "updated")
        version = (_text(item, "guid"), date)
        links = [(url, length, True) for url, length in _enclosures(item)] or [(_page(item), None, False)]
        for url, length, attached in links:
            made = entry_at(base, url, *version, size=_size(length), title=title, published=date) if url else None
            if made:
                # Podcasts often state a wrong length: it shows a change, but is not checked against the file.
                yield _without_size(made), attached


def _enclosures(item: Element) -> list[tuple[str, str | None]]:
    """(URL, length) of an RSS item's files: enclosures, links with rel="enclosure", otherwise Media RSS."""
    found = [(child.get("url"), child.get("length")) for child in item if local(child).lower() == "enclosure"]
    linked = [child for child in item if local(child).lower() == "link" and child.get("rel") == "enclosure"]
    found += [(child.get("href"), child.get("length")) for child in linked]
    if files := [(url, length) for url, length in found if url]:
        return files
    media = (child for child in below(item, "item") if local(child) == "content" and child.get("url"))
    return [(child.get("url", ""), child.get("fileSize")) for child in media]


def _page(item: Element) -> str:
    """The URL of an RSS item: its link, or its guid unless that says it is no permalink."""
    hrefs = (child.get("href") for child in item if local(child).lower() == "link" and child.get("rel") is None)
    link = _text(item, "link") or next((href for href in hrefs if href), "")
    guid = next((child for child in item if local(child).lower() == "guid"), None)
    if link or guid is None or guid.get("isPermaLink", "true").strip().lower() == "false":
        return link
    return (guid.text or "").strip()


def _atom(root: Element, base: str) -> Iterator[tuple[Entry, bool]]:
    for item in (element for element in below(root, "entry") if local(element) == "entry"):
        title, date = _text(item, "title"), _text(item, "updated", "published", "modified")
        here = resolved(base, item.get(_XML_BASE, "")) or base
        links = [child for child in item if local(child) == "link" and child.get("href")]
        files = [(link, True) for link in links if link.get("rel") == "enclosure"]
        files += [(child, True) for child in item if local(child) == "content" and child.get("src")]
        pages = [(link, False) for link in links if link.get("rel", "alternate") == "alternate"]
        for link, attached in files or pages[:1]:
            url = str(link.get("href") or link.get("src"))
            version = (_text(item, "id"), date)
            made = entry_at(here, url, *version, size=_size(link.get("length")), title=title, published=date)
            if made:
                yield _without_size(made), attached


def _without_size(entry: Entry) -> Entry:
    from dataclasses import replace

    return replace(entry, size=None)


def _s3(root: Element, base: str) -> Listing:
    here = urlsplit(base)
    folder = here.path.rstrip("/")
    encoded = _text(root, "encodingtype") == "url"
    entries: list[Entry] = []
    last = ""
    for item in (child for child in root if local(child) == "Contents"):
        key = _text(item, "key")
        last = key = unquote_plus(key) if encoded else key
        if not key or key.endswith("/"):
            continue
        link = urlunsplit((here.scheme, here.netloc, f"{folder}/{quote(key)}", "", ""))
        version = (_text(item, "etag"), _text(item, "lastmodified"))
        size = whole_number(_text(item, "size"))
        made = entry_at(base, link, *version, size=size, published=version[1])
        if made:
            entries.append(made)
    return Listing("s3", unique(entries), _next_page(root, here.query, base, last))


def _next_page(root: Element, query: str, base: str, last: str) -> list[str]:
    if _text(root, "istruncated").lower() != "true":
        return []
    token = _text(root, "nextcontinuationtoken")
    marker = _text(root, "nextmarker") or last
    more = {"continuation-token": token, "list-type": "2"} if token else {"marker": marker}
    if not any(more.values()):
        return []
    kept = [part for part in query.split("&") if part and part.split("=")[0] not in more]
    here = urlsplit(base)
    return [urlunsplit((here.scheme, here.netloc, here.path, "&".join([*kept, urlencode(more)]), ""))]


def _sitemap(root: Element, base: str) -> Listing:
    places = ((_text(child, "loc"), _text(child, "lastmod")) for child in root)
    if local(root).lower() == "sitemapindex":
        return Listing("sitemap", [], _pages(resolved(base, place) for place, _ in places if place))
    made = (entry_at(base, place, changed, published=changed) for place, changed in places if place)
    return Listing("sitemap", unique(entry for entry in made if entry))


def _pages(urls: Iterator[str | None]) -> list[str]:
    """Each URL once. SourceBroken as soon as there are more than anyone would read."""
    found: dict[str, None] = {}
    for url in urls:
        if url:
            found[url] = None
        if len(found) > MAX_ENTRIES:
            raise SourceBroken(f"the source lists more than {MAX_ENTRIES} sitemaps: split it")
    return list(found)
