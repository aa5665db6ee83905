"""Lists of files as sources publish them: JSON, HTML, RSS, Atom, S3 listings, checksum files."""

from __future__ import annotations

import codecs
import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from html.entities import html5
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, unquote_plus, urldefrag, urlencode, urljoin, urlsplit, urlunsplit

from tidegate.common.ids import digest
from tidegate.common.json_input import read_date, read_json, whole_number
from tidegate.errors import SourceBroken
from tidegate.files.model import path_fault

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element, TreeBuilder

# --- text
# Decodes a list with its real encoding, and repairs common faults of XML feeds.

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The first bytes of "<" or "<?" in encodings with more than one byte per character and no byte order mark.
_STARTS = ((b"<\0\0\0", "utf-32-le"), (b"\0\0\0<", "utf-32-be"), (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))
_EBCDIC = "<?xml".encode("cp037")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.I)
_DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})["']""")
# Codecs that are slow on large input, or not used for documents.
_NOT_OF_DOCUMENTS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"})

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_KEPT_AS_IS = re.compile(r"<!--|<!\[CDATA\[")
_DECLARED_PREFIX = re.compile(r"\sxmlns:([A-Za-z_][\w.-]*)\s*=")
_REFERENCE = re.compile(r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{0,31});)?")
_OF_XML = frozenset({"amp", "lt", "gt", "quot", "apos"})
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG_NAME = re.compile(r"</?([A-Za-z_][\w.-]*):|\s([A-Za-z_][\w.-]*):[\w.-]+\s*=")
_CUT_END_TAG = re.compile(r"(</[\w:.-]+)\s*\Z")
_ROOT = re.compile(r"<(?![?!])[^\s/>]+")


def decoded(body: bytes, content_type: str = "") -> str:
    """Returns the text of an answer.

    The encoding is that of the byte order mark, the header or the XML declaration. Without these, it is UTF-8, or
    cp1252 if the bytes are not UTF-8.
    """
    for name in _candidates(body, content_type):
        try:
            found = codecs.lookup(name)
            if found.name not in _NOT_OF_DOCUMENTS:
                return body.decode(found.name).removeprefix("\ufeff")
        except (LookupError, ValueError):
            continue
    return body.decode("cp1252", "replace")


def _candidates(body: bytes, content_type: str) -> Iterator[str]:
    yield from (name for mark, name in _BOMS if body.startswith(mark))
    start = body[:64].lstrip()
    yield from (name for mark, name in _STARTS if start.startswith(mark))
    header = _CHARSET.search(content_type)
    if header:
        yield header[1]
    # All EBCDIC code pages encode the letters of the declaration in the same way.
    opening = body[:200].decode("cp037").encode() if start.startswith(_EBCDIC) else body[:1024]
    declared = _DECLARED.search(opening)
    if declared:
        yield declared[1].decode("ascii")
    yield "utf-8"


def without_declaration(text: str) -> str:
    """Returns the XML without its declaration. Blank lines before `<?xml` are common, and the parser refuses them."""
    found = _DECLARATION.match(text)
    return text[found.end() :] if found else text.lstrip()


def mended(text: str) -> str:
    """Returns XML with its most common faults repaired. The parser may still refuse it.

    The faults: HTML entities, a bare `&`, control characters, undeclared prefixes, a missing last `>`.
    """
    text = _CUT_END_TAG.sub(r"\1>", _NOT_IN_XML.sub("", text))
    return _with_prefixes("".join(_with_references(text)))


def _with_references(text: str) -> Iterator[str]:
    """Yields the text with repaired references, except in comments and CDATA sections. Takes linear time."""
    place = 0
    while found := _KEPT_AS_IS.search(text, place):
        end = text.find("-->" if found[0] == "<!--" else "]]>", found.end())
        if end < 0:
            break
        yield _REFERENCE.sub(_reference, text[place : found.start()])
        yield text[found.start() : end + 3]
        place = end + 3
    yield _REFERENCE.sub(_reference, text[place:])


def _reference(found: re.Match[str]) -> str:
    name = found[1]
    if name is None:
        return found[0].replace("X", "x", 1) if len(found[0]) > 1 else "&amp;"
    if name in _OF_XML:
        return found[0]
    known = html5.get(f"{name};")
    return "".join(f"&#{ord(char)};" for char in known) if known else f"&amp;{name};"


def _with_prefixes(text: str) -> str:
    used = {found[1] or found[2] for found in _TAG_NAME.finditer(text)} - {"xml", "xmlns"}
    missing = sorted(used - {found[1] for found in _DECLARED_PREFIX.finditer(text)})
    root = _ROOT.search(text)
    if not missing or not root:
        return text
    declared = "".join(f' xmlns:{name}="urn:undeclared:{name}"' for name in missing[:50])
    return text[: root.end()] + declared + text[root.end() :]


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
    """A file in a list. `fingerprint` changes when the file changes, if the list shows that change."""

    url: str
    path: str
    name: str
    fingerprint: str
    signature: str | None = None
    size: int | None = None
    title: str | None = None
    # As in the source: an RFC 822 or ISO 8601 date.
    published: str | None = None
    # Whether the list shows when the file changes: its date, size or digest.
    dated: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of one answer, and the URLs of further pages of the same list."""

    format: str
    entries: list[Entry]
    more: list[str] = field(default_factory=list)
    # Why entries were left out, one text for each.
    skipped: list[str] = field(default_factory=list)
    # Folders directly below a directory index.
    folders: list[str] = field(default_factory=list)


class _Skipped(list[str]):
    """Reasons why entries were left out. SourceBroken if there are more than MAX_ENTRIES: a page may have millions."""

    def append(self, why: str, /) -> None:
        super().append(why)
        if len(self) > MAX_ENTRIES:
            raise SourceBroken(f"more than {MAX_ENTRIES} entries of the list cannot be read, such as: {why}")


def unique(entries: Iterable[Entry]) -> list[Entry]:
    """Returns one entry for each URL: the last one. SourceBroken as soon as there are more than MAX_ENTRIES."""
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
    skipped: list[str],
) -> Entry | None:
    """Returns the file behind a link. If its URL or path is not valid, returns None and adds the reason to `skipped`.

    `version` has values that change when the file changes.
    """
    url = resolved(base, link.strip())
    if url is None:
        skipped.append(f"the url of an entry cannot be parsed: {link[:200]!r}")
        return None
    path = unquote(urlsplit(url).path) or "/"
    if fault := path_fault(path):
        skipped.append(f"entry {link[:200]!r}: path {fault}")
        return None
    name = plain_name(posixpath.basename(path.rstrip("/"))) or "file"
    fingerprint = digest(*(str(one) for one in version), str(size), str(signature), length=32)
    known_size = size if size is not None and 0 <= size <= LARGEST else None
    # An id (of an item in a feed) stays the same when its file changes.
    dated = bool(published or signature or size is not None or any(str(one).strip() for one in version[-1:]))
    return Entry(url, path, name, fingerprint, signature, known_size, title, published, dated)


def resolved(base: str, link: str) -> str | None:
    """Returns the link as a full URL. None if that URL would not be valid."""
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
    """Returns a valid file name, without slashes and control characters. Empty if nothing is left of the value."""
    name = value if isinstance(value, str) else ""
    kept = "".join(char for char in name if ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF)
    kept = kept.replace("/", "_").replace("\\", "_")[:LONGEST_NAME]
    return "" if kept in (".", "..") else kept


def sha256_in(text: object) -> str | None:
    """Returns the SHA-256 in a text that is `sha256:…` or 64 hexadecimal digits. None for any other text."""
    found = str(text or "").strip().lower().removeprefix("sha256:")
    return found if len(found) == 64 and set(found) <= _SHA_DIGITS else None


# --- checksums
# Checksum lists such as SHA256SUMS: a digest and a file name on each line, as coreutils and BSD write them.

_COREUTILS = re.compile(r"\\?([0-9a-fA-F]{32,128}) [ *](.+)")
_BSD = re.compile(r"[A-Z0-9-]+ \((.+)\) = ([0-9a-fA-F]{32,128})")


# More than any list that is accepted has, with comments and blank lines.
_MOST_LINES = 20 * MAX_ENTRIES
_SIGNED = "-----BEGIN PGP SIGNED MESSAGE-----"
_SIGNATURE = "-----BEGIN PGP SIGNATURE-----"


def _lines(text: str) -> list[str]:
    """Returns the lines of the list, or those inside a PGP clear-signed message. The signature is not verified.

    If there are too many lines, the last one contains all the rest. `from_sums` refuses such lists."""
    lines = [line.rstrip("\r") for line in text.split("\n", _MOST_LINES)]
    if not lines or lines[0].strip() != _SIGNED:
        return lines
    begins = lines.index("") if "" in lines else 0
    ends = lines.index(_SIGNATURE) if _SIGNATURE in lines else len(lines)
    return [line.removeprefix("- ") for line in lines[begins:ends]]


def looks_like_sums(text: str) -> bool:
    first = next((line for line in _lines(text) if line.strip() and not line.startswith("#")), "")
    return bool(_COREUTILS.fullmatch(first) or _BSD.fullmatch(first))


def from_sums(text: str, base: str, skipped: list[str]) -> Iterator[Entry]:
    """Yields the entries of a checksum list. The download verifies a SHA-256. Other checksums only show changes."""
    if text.count("\n") > _MOST_LINES:
        raise SourceBroken(f"the checksum list has more than {_MOST_LINES} lines: split it")
    for number, line in enumerate(_lines(text), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _COREUTILS.fullmatch(line)
        bsd = _BSD.fullmatch(line)
        if not found and not bsd:
            skipped.append(f"line {number} of the checksum list is not a digest and a file name: {line[:80]!r}")
            continue
        checksum, name = (found[1], found[2]) if found else (bsd[2], bsd[1])  # type: ignore[index]
        entry = entry_at(base, quote(name.removeprefix("./")), checksum, signature=sha256_in(checksum), skipped=skipped)
        if entry:
            yield entry


# --- json list
# JSON lists of files: plain ones, JSON Feed, and the releases of a GitHub repository.

_VERSION_FIELDS = ("signature", "sha256", "digest", "etag", "size", "last_modified", "updated_at", "version")

# A hundred for each file. An object takes 30 times as much memory as its text: a page of objects only would not fit.
_MOST_OBJECTS = 100 * MAX_ENTRIES


def from_json(text: str, base: str) -> Listing:
    """Returns the files of a JSON list, without entries that cannot be read. SourceBroken if no entry can be read."""
    skipped = _Skipped()

    def entries() -> Iterator[Entry]:
        for index, item in enumerate(_json_files(text)):
            try:
                yield _described(item, base, index)
            except _BadEntry as error:
                skipped.append(str(error))

    listing = Listing("json", unique(entries()), skipped=skipped)
    if skipped and not listing.entries:
        raise SourceBroken(skipped[0])
    return listing


class _BadEntry(Exception):
    pass


def _json_files(text: str) -> Iterator[Any]:
    if text.count("{") + text.count("[") > _MOST_OBJECTS:
        raise SourceBroken(f"the JSON has more than {_MOST_OBJECTS} objects and lists: split it")
    try:
        listed = read_json(text)
    except ValueError as error:
        raise SourceBroken("the list of files is not valid JSON: correct it, or name another `format`") from error
    return _files(listed)


def _files(listed: Any) -> Iterator[Any]:
    if isinstance(listed, dict) and isinstance(listed.get("assets"), list):
        listed = [listed]
    if isinstance(listed, dict):
        feed = str(listed.get("version", "")).startswith("https://jsonfeed.org/")
        listed = listed.get("items" if feed else "files")
        if feed and isinstance(listed, list):
            # As in RSS and Atom: the pages of items are listed only if no item has a file attached.
            attached = [item for item in listed if isinstance(item, Mapping) and item.get("attachments")]
            listed = attached or listed
    if not isinstance(listed, list):
        raise SourceBroken('the JSON must be a list of files, or an object such as {"files": […]}')
    for item in listed:
        if isinstance(item, Mapping) and isinstance(item.get("assets"), list):
            yield from map(_release_asset, item["assets"])
        elif isinstance(item, Mapping) and isinstance(item.get("attachments"), list) and item["attachments"]:
            yield from map(_attachment, item["attachments"])
        else:
            yield item


def _release_asset(asset: Any) -> Any:
    """Returns an asset of a GitHub release with the URL of its file. The asset's own `url` leads to a description."""
    if not isinstance(asset, Mapping) or "browser_download_url" not in asset:
        return asset
    return {**asset, "url": asset["browser_download_url"]}


def _attachment(item: Any) -> Any:
    return {**item, "size": item.get("size_in_bytes")} if isinstance(item, Mapping) else item


def _described(listed: Any, base: str, index: int) -> Entry:
    item = {"url": listed} if isinstance(listed, str) else listed
    if not isinstance(item, Mapping) or not isinstance(item.get("url"), str):
        raise _BadEntry(f'entry {index} of the list has no url: write {{"url": "https://…"}} or a plain URL')
    url = resolved(base, item["url"])
    if url is None:
        raise _BadEntry(f"the url of entry {index} of the list cannot be parsed: {item['url'][:200]!r}")
    path = item.get("path") or unquote(urlsplit(url).path)
    if not isinstance(path, str) or path_fault(path):
        raise _BadEntry(f"entry {index} of the list: path {path_fault(str(path)) or 'is not text'}")
    size = item.get("size")
    known_size = size if type(size) is int and 0 <= size <= LARGEST else None
    signature = next(filter(None, (sha256_in(item.get(name)) for name in ("signature", "sha256", "digest"))), None)
    version = [str(item.get(name, "")) for name in _VERSION_FIELDS]
    name = plain_name(item.get("name")) or plain_name(posixpath.basename(path.rstrip("/"))) or "file"
    title = item.get("title")
    return Entry(
        url,
        path,
        name,
        digest(*version, length=32),
        signature,
        known_size,
        title if isinstance(title, str) else None,
        dated=any(version),
    )


# Indexes link a file several times, and sort links and folders are left out. More than this is no index.
_MOST_LINKS = 10 * MAX_ENTRIES


class _Links(HTMLParser):
    """Collects the links of a page. Each has the text up to the next link, where web servers print date and size."""

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


def from_html(text: str, base: str, skipped: list[str], folders: list[str]) -> Iterator[Entry]:
    """Yields the files below a directory index. Adds the folders of the index to `folders`.

    Leaves out links to parent folders, to sorted views and to other sites.
    """
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
        if not below or there.query or there.path in (here.path, folder):
            continue
        if there.path.endswith("/"):
            folders.append(url)
            continue
        if fault := path_fault(path):
            skipped.append(f"entry {href[:200]!r}: path {fault}")
            continue
        name = plain_name(path.rsplit("/", 1)[-1]) or "file"
        shown = " ".join("".join(after).split())
        # Web servers print a date or a size after the link; a text without a digit is a description.
        yield Entry(url, path, name, digest(shown, length=32), dated=any(char.isdigit() for char in shown))


# --- xml tree
# Parses XML from unknown sources within limits. Entities are never expanded, nothing external is loaded.

# Fifty for each file. An element takes up to 400 bytes: a page of elements only would not fit into the memory.
_MOST_ELEMENTS = 50 * MAX_ENTRIES
# The parser copies the namespace for every element.
_LONG_NAMESPACE = re.compile(r"""\sxmlns(?::[^\s=]{1,100})?\s*=\s*(?:"[^"]{1000}|'[^']{1000})""")


def parsed(text: str) -> Element:
    """Returns the root element. SourceBroken if the text is not XML even after repairs, or is too large to parse."""
    text = without_declaration(text)
    try:
        return _strictly_parsed(text)
    except _Refused:
        raise
    except SourceBroken as error:
        # Keep the message about the original text, which the source's owner can look at. Do not keep the error itself:
        # it holds everything that was parsed.
        detail = error.detail
    try:
        return _strictly_parsed(mended(text))
    except SourceBroken as error:
        raise SourceBroken(detail) from error


class _Refused(SourceBroken):
    """Raised if the XML would take too much memory or time. Repairing the XML would not help."""


def _strictly_parsed(text: str) -> Element:
    # Imported here because only scans need it.
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import XMLParser

    if _LONG_NAMESPACE.search(text):
        raise _Refused("the XML has a namespace of more than 1,000 characters")
    parser = XMLParser(target=_limited_tree())
    parser.parser.AttlistDeclHandler = _refuse_defaults
    try:
        parser.feed(text)
        root: Element = parser.close()
    except DefusedXmlException as error:
        raise SourceBroken("the XML declares entities, which are not allowed: remove its DTD") from error
    except (ParseError, ValueError, LookupError) as error:
        raise SourceBroken(f"the XML is not well-formed: {str(error)[:100]}") from error
    return root


def _refuse_defaults(*_: object) -> None:
    """Refuses XML with default attributes. The parser adds them to each element, which could fill the memory."""
    raise _Refused("the XML declares attributes, which is not allowed: remove its DTD")


def _limited_tree() -> TreeBuilder:
    from xml.etree.ElementTree import TreeBuilder

    class Limited(TreeBuilder):
        left = _MOST_ELEMENTS

        def start(self, tag: Any, attrs: dict[Any, Any], /) -> Element:
            self.left -= 1
            if self.left < 0:
                raise _Refused(f"the XML has more than {_MOST_ELEMENTS} elements: split it")
            return super().start(tag, attrs)

    return Limited()


def below(element: Element, stop: str) -> Iterator[Element]:
    """Yields all elements below this one, in order. Leaves out what is inside an element with the name `stop`.

    So if such elements are nested, no element is visited several times.
    """
    waiting = list(reversed(element))
    while waiting:
        found = waiting.pop()
        yield found
        if local(found).lower() != stop:
            waiting.extend(reversed(found))


def local(element: Element) -> str:
    """Returns the element's name without its namespace. Feeds use the right namespace, an old one, or none."""
    return str(element.tag).rsplit("}", 1)[-1]


# The most characters of an element that are read, for each file of an item. A URL that is cut here is too long anyway.
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
    """Returns the files of RSS (podcasts too), Atom, S3 listings or sitemaps. SourceBroken for another format.

    `wanted`: the format that the text must have, or `auto` for any of these.
    """
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
    skipped = _Skipped()
    files = unique(entry for entry, attached in linked(root, base, skipped) if attached)
    # A feed without any attached file is a list of pages, or of links to files.
    return Listing(found, files or unique(entry for entry, _ in linked(root, base, [])), skipped=skipped)


def _text(element: Element, *names: str) -> str:
    """Returns the text of the first of these children that has a text. Empty if none of them has one."""
    found: dict[str, str] = {}
    for child in element:
        if text := (child.text or "").strip()[:_LONGEST_TEXT]:
            found.setdefault(local(child).lower(), text)
    return next((found[name] for name in names if name in found), "")


def _size(text: Any) -> int | None:
    return whole_number(str(text or "").strip()) or None


def _rss(root: Element, base: str, skipped: list[str]) -> Iterator[tuple[Entry, bool]]:
    for item in (element for element in below(root, "item") if local(element).lower() == "item"):
        title, date = _text(item, "title"), _text(item, "pubdate", "date", "updated")
        version = (_text(item, "guid"), date)
        links = [(url, length, True) for url, length in _enclosures(item)] or [(_page(item), None, False)]
        for url, length, attached in links:
            if not url:
                continue
            about = {"title": title, "published": date}
            made = entry_at(base, url, *version, size=_size(length), **about, skipped=skipped)
            if made:
                # Podcasts often state a wrong length: it shows a change, but is not checked against the file.
                yield _without_size(made), attached


def _enclosures(item: Element) -> list[tuple[str, str | None]]:
    """Returns (URL, length) of an RSS item's files.

    These are its enclosures and its links with rel="enclosure". If there are none, its Media RSS files.
    """
    found = [(child.get("url"), child.get("length")) for child in item if local(child).lower() == "enclosure"]
    linked = [child for child in item if local(child).lower() == "link" and child.get("rel") == "enclosure"]
    found += [(child.get("href"), child.get("length")) for child in linked]
    if files := [(url, length) for url, length in found if url]:
        return files
    media = (child for child in below(item, "item") if local(child) == "content" and child.get("url"))
    return [(child.get("url", ""), child.get("fileSize")) for child in media]


def _page(item: Element) -> str:
    """Returns the URL of an RSS item: its link, or else its guid, unless the guid is marked as no permalink."""
    hrefs = (child.get("href") for child in item if local(child).lower() == "link" and child.get("rel") is None)
    link = _text(item, "link") or next((href for href in hrefs if href), "")
    guid = next((child for child in item if local(child).lower() == "guid"), None)
    if link or guid is None or guid.get("isPermaLink", "true").strip().lower() == "false":
        return link
    return (guid.text or "").strip()


def _atom(root: Element, base: str, skipped: list[str]) -> Iterator[tuple[Entry, bool]]:
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
            about = {"title": title, "published": date}
            made = entry_at(here, url, *version, size=_size(link.get("length")), **about, skipped=skipped)
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
    skipped = _Skipped()
    last = ""
    for item in (child for child in root if local(child) == "Contents"):
        key = _text(item, "key")
        last = key = unquote_plus(key) if encoded else key
        if not key or key.endswith("/"):
            continue
        link = urlunsplit((here.scheme, here.netloc, f"{folder}/{quote(key)}", "", ""))
        version = (_text(item, "etag"), _text(item, "lastmodified"))
        size = whole_number(_text(item, "size"))
        made = entry_at(base, link, *version, size=size, published=version[1], skipped=skipped)
        if made:
            entries.append(made)
    return Listing("s3", unique(entries), _next_page(root, here.query, base, last), skipped)


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
    skipped = _Skipped()
    made = (entry_at(base, place, changed, published=changed, skipped=skipped) for place, changed in places if place)
    return Listing("sitemap", unique(entry for entry in made if entry), skipped=skipped)


def _pages(urls: Iterator[str | None]) -> list[str]:
    """Returns each URL once. SourceBroken as soon as there are more than MAX_ENTRIES."""
    found: dict[str, None] = {}
    for url in urls:
        if url:
            found[url] = None
        if len(found) > MAX_ENTRIES:
            raise SourceBroken(f"the source lists more than {MAX_ENTRIES} sitemaps: split it")
    return list(found)


# --- choice
# Which of the listed files a subscription downloads, and their paths in the library.

FIELDS = ("path", "dir", "name", "stem", "ext", "host", "title", "year", "month", "day")
_FIELD = re.compile(r"\{(\w*)\}")


def template_fault(template: str) -> str | None:
    """Returns why a template for paths is refused. None if it is valid."""
    unknown = [name for name in _FIELD.findall(template) if name not in FIELDS]
    if unknown:
        return f"{{{unknown[0]}}} is not a field; the fields are {', '.join(f'{{{name}}}' for name in FIELDS)}"
    if not _FIELD.search(template):
        return "has no field, so all files would get the same path: add one, such as {name} for the file's name"
    return path_fault(template)


def chosen(
    entries: Sequence[Entry], include: Sequence[str] = (), exclude: Sequence[str] = (), template: str | None = None
) -> list[Entry]:
    """Returns the entries that match `include` and not `exclude`. If there is a template, it makes their paths.

    A glob with a slash is matched against the path. A glob without a slash is matched against the name.
    """
    taken = (entry for entry in entries if not include or _matches(entry, include))
    kept = (entry for entry in taken if not _matches(entry, exclude))
    return [_placed(entry, template) if template else entry for entry in kept]


def _matches(entry: Entry, globs: Sequence[str]) -> bool:
    return path_matches(entry.path, globs, entry.name)


def path_matches(path: str, globs: Sequence[str], name: str | None = None) -> bool:
    """Whether one of the globs matches.

    A glob with a slash is matched against the path. A glob without a slash is matched against the name.
    """
    last = name or posixpath.basename(path)
    return any(fnmatchcase(path if "/" in glob else last, glob) for glob in globs)


def _placed(entry: Entry, template: str) -> Entry:
    """Returns the entry with the path that the template makes. Returns it unchanged if that path is not valid."""
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


FORMATS = ("auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap")
_XML = frozenset({"rss", "atom", "s3", "sitemap"})
_TAG = re.compile(r"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")


def listing_of(body: bytes, content_type: str, base: str, format: str = "auto") -> Listing:
    """Returns the files that a source lists. SourceBroken if its format is not known, or is not the given `format`."""
    text = decoded(_unpacked(body), content_type)
    kind = _kind(text, content_type) if format == "auto" else format
    if kind in _XML:
        return from_xml(text, base, kind)
    if kind == "xml":
        return from_xml(text, base, "auto")
    if kind == "json":
        return from_json(text, base)
    skipped = _Skipped()
    if kind == "html":
        folders: list[str] = []
        return Listing(kind, unique(from_html(text, base, skipped, folders)), [], skipped, list(dict.fromkeys(folders)))
    found = unique(from_sums(text, base, skipped))
    if skipped and not found:
        raise SourceBroken(skipped[0])
    return Listing(kind, found, skipped=skipped)


def _unpacked(body: bytes) -> bytes:
    """Returns the body, unpacked if it is gzip. Sitemaps are often stored as .xml.gz, and no header says so."""
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
    """Returns the name of the first element after the declaration, comments and DOCTYPE. Empty if there is none."""
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
