"""Any answer of a source is either a list of files or a clear error, and only web URLs are fetched."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import SCALARS, TEXT, examples, json_values
from tidegate.errors import SourceBroken, UrlNotAllowed
from tidegate.files.model import path_fault
from tidegate.http.client import SafeHttp
from tidegate.ingest.feeds import MAX_ENTRIES, Entry, listing_of
from tidegate.web.schemas import plain_name

BASES = ("https://files.example/pub/list.json", "http://files.example/", "https://files.example/pub/")
LINKS = (
    "a.zip",
    "/pub/b%20c",
    "../up",
    "//other.example/x",
    "http://[",
    "http://a:b/x",
    "https://files.example:99999/x",
    "ftp://files.example/x",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:,x",
    "?C=N",
    "#part",
    "%00",
    "%2e%2e/x",
    "%ff",
)
links = st.sampled_from(LINKS) | TEXT | TEXT.map("http://{}/x".format)
files = links | st.fixed_dictionaries(
    {"url": links},
    optional={name: SCALARS | json_values() for name in ("path", "name", "size", "sha256", "signature", "etag")},
)
listed = st.lists(files, max_size=8)
manifests = (listed | listed.map(lambda entries: {"files": entries}) | json_values("files", "url", "path")).map(
    json.dumps
)
pages = st.lists(
    st.builds('<a href="{}">{}</a>{}'.format, links, TEXT, TEXT)
    | st.sampled_from(["<a", "<![x[", "<!--", "</a", "<a href>", "&#", "<!DOCTYPE", "<?", "<script>", "]]>", "<!a"])
    | TEXT,
    max_size=8,
).map("".join)
feeds = st.lists(
    st.builds('<item><enclosure url="{}" length="{}"/></item>'.format, links, TEXT)
    | st.builds('<entry><link rel="enclosure" href="{}"/></entry>'.format, links)
    | st.builds("<Contents><Key>{}</Key><Size>{}</Size></Contents>".format, links, TEXT)
    | st.builds("<url><loc>{}</loc></url>".format, links)
    | st.sampled_from(["<?xml version='1.0'?>", "<!--", "-->", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&b;", "]]>", "<"]),
    max_size=6,
).flatmap(
    lambda parts: st.sampled_from(
        ["rss", "feed", "ListBucketResult", "urlset", "sitemapindex", "other", "rdf:RDF"]
    ).map(lambda root: f"<{root}>{''.join(parts)}</{root}>")
)
sums = st.lists(st.builds("{}  {}".format, st.sampled_from(["a" * 64, "b" * 40, "x"]), TEXT), max_size=4).map("\n".join)
bodies = st.binary(max_size=200) | (manifests | pages | feeds | sums).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)


@examples(400)
@given(bodies, st.sampled_from(["application/json", "text/html", "application/xml", ""]), st.sampled_from(BASES))
@example(b'["http://["]', "application/json", BASES[0])
@example(b'<a href="http://[">x</a>', "text/html", BASES[0])
@example(b"<![x[", "text/html", BASES[0])
@example(b"[" * 100_000, "application/json", BASES[0])
@example(rb'[{"url": "/x", "name": "\ud800"}]', "application/json", BASES[0])
@example(b'[{"url": "/x", "name": "..", "size": true}]', "application/json", BASES[0])
@example(b'[{"url": "/x", "size": -1}]', "application/json", BASES[0])
@example(b"<!--a-->" * 8000, "application/xml", BASES[0])
@example(b"<!DOCTYPE l [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><rss>&b;</rss>", "application/xml", BASES[0])
def test_any_answer_is_a_manifest_or_a_clear_error(body: bytes, content_type: str, base: str) -> None:
    try:
        entries = listing_of(body, content_type, base).entries
    except SourceBroken:
        return

    assert len({entry.url for entry in entries}) == len(entries) <= MAX_ENTRIES
    for entry in entries:
        assert path_fault(entry.path) is None
        assert plain_name(entry.name)
        assert len(entry.name) <= 255
        assert entry.signature is None or len(entry.signature) == 64
        assert entry.size is None or (type(entry.size) is int and entry.size >= 0)
        assert_web_or_refused(entry)


def assert_web_or_refused(entry: Entry) -> None:
    """A scan counts refused URLs and continues."""
    if urlsplit(entry.url).scheme not in ("http", "https"):
        with pytest.raises(UrlNotAllowed):
            NOWHERE.check_url(entry.url)


def no_address(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host} was looked up")


NOWHERE = SafeHttp(resolver=no_address)


@examples(150)
@given(pages, st.sampled_from(BASES))
def test_index_lists_only_files_below_it(page: str, base: str) -> None:
    try:
        entries = listing_of(page.encode("utf-8", "replace"), "text/html", base).entries
    except SourceBroken:
        return

    folder = base.rsplit("/", 1)[0] + "/"
    assert all(entry.url.startswith(folder) for entry in entries)
