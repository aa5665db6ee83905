"""Feeds in the formats of real sources."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from tidegate.errors import SourceBroken
from tidegate.ingest import feeds
from tidegate.ingest import feeds as entry
from tidegate.ingest import feeds as html_index
from tidegate.ingest import feeds as json_list
from tidegate.ingest import feeds as xml_feeds
from tidegate.ingest import feeds as xml_tree
from tidegate.ingest.feeds import Listing, chosen, listing_of, template_fault

XML = "application/xml"
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def read(text: str, base: str = "https://files.example/feed", type: str = XML, format: str = "auto") -> Listing:
    return listing_of(text.encode(), type, base, format)


def urls(listing: Listing) -> list[str]:
    return [entry.url for entry in listing.entries]


PODCAST = """<?xml version="1.0" encoding="UTF-8"?>
<!-- made by a podcast host -->
<rss version="2.0" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd"><channel><title>Tides</title>
<item><title>One: the moon</title><guid isPermaLink="false">1</guid><pubDate>Mon, 16 Nov 2026 05:00:00 GMT</pubDate>
<enclosure url="https://cdn.example/ep/one.mp3?source=feed" length="1234" type="audio/mpeg"/></item>
<item><title>Two</title><link>https://tides.example/two</link><enclosure url="/ep/two.mp3" length="0"/></item>
<item><title>News without a file</title><link>https://tides.example/news</link></item>
</channel></rss>"""
WORDPRESS = """<?xml version="1.0"?><rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/">
<channel><item><title>Post</title><link>https://blog.example/2026/post.html</link>
<content:encoded><![CDATA[<p>A <a href="/x">link</a></p>]]></content:encoded></item></channel></rss>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel/><item rdf:about="x"><title>a</title><link>https://old.example/a.tgz</link></item></rdf:RDF>"""
MEDIA = """<rss xmlns:media="http://search.yahoo.com/mrss/"><channel><item><title>v</title>
<media:group><media:content url="https://v.example/v.mp4" fileSize="5"/></media:group></item></channel></rss>"""
ATOM = """<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom" xml:base="https://dl.example/pub/">
<link rel="self" href="feed.atom"/><entry><id>1</id><updated>2026-11-16T05:00:00Z</updated><title>v1</title>
<link rel="alternate" href="notes.html"/><link rel="enclosure" href="app-1.tar.gz" length="77"/></entry></feed>"""
GITHUB_ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>tag:github.com,2008:Repository/1/v1</id>
<updated>2026-11-16T05:00:00Z</updated><link rel="alternate" type="text/html"
href="https://github.com/o/r/releases/tag/v1"/><title>v1</title></entry></feed>"""
S3 = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><IsTruncated>true</IsTruncated>
<NextContinuationToken>1/x==</NextContinuationToken>
<Contents><Key>data/</Key><Size>0</Size></Contents>
<Contents><Key>data/a b+c.csv</Key><LastModified>2026-11-16T05:00:00.000Z</LastModified>
<ETag>"abc"</ETag><Size>12</Size></Contents></ListBucketResult>"""
SITEMAP = """<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>https://x.example/a.pdf</loc>
<lastmod>2026-11-16</lastmod></url><url><loc> https://x.example/b.pdf </loc></url></urlset>"""
SITEMAP_INDEX = """<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><sitemap>
<loc>https://x.example/one.xml</loc></sitemap></sitemapindex>"""


def test_podcast_lists_its_enclosures_not_its_pages() -> None:
    found = read(PODCAST, "https://tides.example/feed.xml")

    assert found.format == "rss"
    assert urls(found) == ["https://cdn.example/ep/one.mp3?source=feed", "https://tides.example/ep/two.mp3"]
    first = found.entries[0]
    assert (first.name, first.path, first.title, first.size) == ("one.mp3", "/ep/one.mp3", "One: the moon", None)


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        (WORDPRESS, "rss", ["https://blog.example/2026/post.html"]),
        (RDF, "rss", ["https://old.example/a.tgz"]),
        (MEDIA, "rss", ["https://v.example/v.mp4"]),
        (ATOM, "atom", ["https://dl.example/pub/app-1.tar.gz"]),
        (GITHUB_ATOM, "atom", ["https://github.com/o/r/releases/tag/v1"]),
        (SITEMAP, "sitemap", ["https://x.example/a.pdf", "https://x.example/b.pdf"]),
    ],
    ids=["wordpress", "rss 1.0", "media rss", "atom", "github atom", "sitemap"],
)
def test_feed_is_recognised_and_lists_its_files(text: str, format: str, expected: list[str]) -> None:
    for content_type in (XML, "text/html", "", "application/rss+xml; charset=utf-8"):
        found = read(text, type=content_type)
        assert (found.format, urls(found)) == (format, expected)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://b.s3.amazonaws.com/?list-type=2&prefix=data", "https://b.s3.amazonaws.com/data/a%20b%2Bc.csv"),
        ("https://s3.example/b?list-type=2", "https://s3.example/b/data/a%20b%2Bc.csv"),
    ],
)
def test_s3_listing_names_its_objects_and_its_next_page(base: str, expected: str) -> None:
    found = read(S3, base)

    assert (found.format, urls(found)) == ("s3", [expected])
    assert found.entries[0].size == 12
    assert "continuation-token=1%2Fx%3D%3D" in found.more[0]
    assert found.more[0].count("list-type") == 1


def test_sitemap_index_lists_its_sitemaps_as_pages() -> None:
    assert read(SITEMAP_INDEX).more == ["https://x.example/one.xml"]


def test_checksum_list_has_the_digests_of_its_files() -> None:
    text = f"{HASH}  debian-13.iso\n{HASH} *./sub/b c.iso\nSHA256 (bsd.img) = {HASH.upper()}\n{'a' * 128}  other\n"

    found = read(text, "https://cdimage.example/13/SHA256SUMS", "text/plain")

    assert found.format == "sums"
    assert urls(found) == [
        f"https://cdimage.example/13/{name}" for name in ("debian-13.iso", "sub/b%20c.iso", "bsd.img", "other")
    ]
    assert [entry.signature for entry in found.entries] == [HASH, HASH, HASH, None]


def test_github_releases_list_assets_with_digests() -> None:
    asset = {
        "url": "https://api.github.com/repos/o/r/releases/assets/1",
        "browser_download_url": "https://github.com/o/r/releases/download/v1/app.zip",
        "name": "app.zip",
        "size": 9,
        "digest": f"sha256:{HASH}",
    }

    (found,) = read(json.dumps([{"tag_name": "v1", "assets": [asset]}]), type="application/json").entries

    assert (found.url, found.signature, found.size) == (asset["browser_download_url"], HASH, 9)


def test_json_feed_lists_its_attachments() -> None:
    item = {"id": "1", "attachments": [{"url": "https://x.example/a.mp3", "size_in_bytes": 5}]}
    feed = {"version": "https://jsonfeed.org/version/1.1", "items": [item]}

    assert urls(read(json.dumps(feed), type="application/feed+json")) == ["https://x.example/a.mp3"]


def test_debian_mirror_index_lists_the_files_below_it() -> None:
    page = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN"><html><body><table>
    <tr><td><a href="/debian/pool/">Parent Directory</a></td></tr>
    <tr><td><a href="a_1.0_amd64.deb">a_1.0_amd64.deb</a></td><td>2026-11-16 05:00</td><td>1.2M</td></tr></table>"""

    found = read(page, "https://deb.example/debian/pool/a/", "text/html;charset=UTF-8")

    assert (found.format, urls(found)) == ("html", ["https://deb.example/debian/pool/a/a_1.0_amd64.deb"])


@pytest.mark.parametrize(
    ("text", "type", "named"),
    [
        ("<?xml version='1.0'?><opml><body/></opml>", XML, "<opml>"),
        ("\x7fELF", "application/x-executable", "application/x-executable"),
        ("<rss><channel>", XML, "not well-formed"),
        ("<!DOCTYPE l [<!ENTITY a 'b'>]><rss>&a;</rss>", XML, "entities"),
        ("hello", "text/plain", "text/plain"),
    ],
)
def test_unknown_format_is_an_error_that_names_it(text: str, type: str, named: str) -> None:
    with pytest.raises(SourceBroken, match=named):
        read(text, type=type)


def test_named_format_is_not_guessed() -> None:
    with pytest.raises(SourceBroken, match="<rss>"):
        read(PODCAST, format="atom")


def test_globs_choose_files_and_a_template_names_them() -> None:
    entries = read(PODCAST, "https://tides.example/feed.xml").entries

    (one,) = chosen(entries, include=["*.mp3"], exclude=["/ep/two*"], template="/pod/{year}/{month}/{title}.{ext}")
    assert one.path == "/pod/2026/11/One: the moon.mp3"
    assert chosen(entries, include=["*.ogg"]) == []


@pytest.mark.parametrize("template", ["/same/for/all", "/{unknown}", "/../{name}", "/{}"])
def test_template_that_cannot_name_files_is_refused(template: str) -> None:
    assert template_fault(template)


RSS_ITEM = '<rss version="2.0"><channel><item>{}</item></channel></rss>'


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ('<guid isPermaLink="false">tag:1</guid><link>https://a.example/x</link>', ["https://a.example/x"]),
        ("<guid>https://a.example/y</guid>", ["https://a.example/y"]),
        ('<guid isPermaLink="false">https://a.example/z</guid>', []),
        (
            '<link rel="enclosure" href="https://a.example/f.mp3"/><link>https://a.example/</link>',
            ["https://a.example/f.mp3"],
        ),
    ],
    ids=["guid first", "guid that is an address", "guid that is none", "link as enclosure"],
)
def test_rss_item_has_the_url_of_its_link(item: str, expected: list[str]) -> None:
    assert urls(read(RSS_ITEM.format(item))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n<?xml version='1.0'?>" + RSS_ITEM.format("<link>https://a.example/1</link>"), "https://a.example/1"),
        (RSS_ITEM.format("<title>caf&eacute;&nbsp;</title><link>https://a.example/2</link>"), "https://a.example/2"),
        (RSS_ITEM.format("<link>https://a.example/?a=1&b=2&copy</link>"), "https://a.example/?a=1&b=2&copy"),
        (RSS_ITEM.format("<title>\x01\x0b</title><link>https://a.example/4</link>"), "https://a.example/4"),
        (RSS_ITEM.format("<itunes:author>x</itunes:author><link>https://a.example/5</link>"), "https://a.example/5"),
        (
            RSS_ITEM.format("<title><![CDATA[&nope; & <b>]]></title><q>&nbsp;</q><link>https://a.example/6</link>"),
            "https://a.example/6",
        ),
    ],
    ids=["blank lines first", "HTML entities", "bare ampersands", "control characters", "prefix", "CDATA"],
)
def test_feed_with_a_common_fault_is_read(text: str, expected: str) -> None:
    assert urls(read(text)) == [expected]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "gb18030", "big5", "shift_jis"]
)
def test_feed_is_read_in_the_encoding_that_it_names(encoding: str) -> None:
    text = f"<?xml version='1.0' encoding='{encoding.removesuffix('-sig')}'?>" + RSS_ITEM.format(
        "<title>文</title><link>https://a.example/x</link>"
    )

    (entry,) = listing_of(text.encode(encoding), XML, "https://a.example/").entries

    assert (entry.title, entry.url) == ("文", "https://a.example/x")


def test_charset_of_the_header_is_used_despite_invalid_bytes() -> None:
    text = RSS_ITEM.format("<title>café</title><link>https://a.example/x</link>")

    by_header = listing_of(text.encode("latin-1"), "text/xml; charset=ISO-8859-1", "https://a.example/")
    by_guess = listing_of(text.encode("cp1252"), "text/xml", "https://a.example/")

    assert [listing.entries[0].title for listing in (by_header, by_guess)] == ["café", "café"]


@pytest.mark.parametrize(
    "text",
    [
        RSS_ITEM.format("<link>https://a.example/x</link>")[:-20],
        '<!DOCTYPE rss [<!ENTITY a "b">]>' + RSS_ITEM.format("<link>https://a.example/&a;</link>"),
        '<!DOCTYPE rss [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + RSS_ITEM.format("<title>&a;</title>"),
    ],
    ids=["cut short", "entity", "external entity"],
)
def test_feed_that_is_cut_short_or_declares_entities_is_refused(text: str) -> None:
    with pytest.raises(SourceBroken):
        read(text)


@pytest.mark.parametrize(
    "unit",
    ["<!--", "<![CDATA[", "&", "&a", "</a", "<a:b ", " a:b", "<?xml ", "<!", "<", "<!DOCTYPE [", " x:y=''"],
)
def test_hostile_feed_takes_linear_time(unit: str) -> None:
    text = "<rss>" + unit * (400_000 // len(unit))
    began = time.process_time()

    with pytest.raises(SourceBroken):
        read(text, format="rss")

    assert time.process_time() - began < 3


def test_item_inside_an_item_is_not_listed_again() -> None:
    inner = '<item><link>https://a.example/inner</link><media url="x"/><content url="https://a.example/2"/></item>'
    text = f'<rss><item><group><content url="https://a.example/1"/></group>{inner}</item></rss>'

    assert urls(read(text)) == ["https://a.example/1"]


def test_entry_inside_an_atom_entry_is_not_listed_again() -> None:
    inner = '<content><entry><link href="https://a.example/2"/></entry></content>'

    assert urls(read(f'<feed><entry><link href="https://a.example/1"/>{inner}</entry></feed>')) == [
        "https://a.example/1"
    ]


@pytest.mark.parametrize("inside", ["", '<content url="a"/>' * 300], ids=["empty", "media"])
def test_nested_items_are_visited_once(inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = 0

    def counted(element: Element) -> str:
        nonlocal visited
        visited += 1
        return str(element.tag)

    for module in (xml_feeds, xml_tree):
        monkeypatch.setattr(module, "local", counted)
    read("<rss>" + "<item>" * 300 + inside + "</item>" * 300 + "</rss>")

    assert visited < 3000


def test_very_deep_feed_is_read() -> None:
    deep = "<a>" * 50_000 + "<item><link>https://a.example/1</link></item>" + "</a>" * 50_000

    assert urls(read(f"<rss>{deep}</rss>")) == ["https://a.example/1"]


@pytest.mark.parametrize(
    ("made_by", "text", "type"),
    [
        ("entry_at", "<rss>{}</rss>|<item><enclosure url='{}'/></item>", XML),
        ("entry_at", "<rss><item>{}</item></rss>|<enclosure url='{}'/>", XML),
        ("entry_at", "<feed>{}</feed>|<entry><link rel='enclosure' href='{}'/></entry>", XML),
        ("entry_at", "<urlset>{}</urlset>|<url><loc>/{}</loc></url>", XML),
        ("entry_at", f"{{}}|{HASH}  {{}}\n", "text/plain"),
        ("_described", '["/x"{}]|,"/{}"', "application/json"),
        ("Entry", "{}|<a href='{}'>x</a>", "text/html"),
    ],
    ids=["rss", "rss enclosures", "atom", "sitemap", "sums", "json", "html"],
)
def test_list_with_too_many_files_is_refused_at_the_first_too_many(
    made_by: str, text: str, type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    make = getattr(feeds, made_by)

    def counted(*args: Any, **how: Any) -> Any:
        nonlocal made
        made += 1
        return make(*args, **how)

    monkeypatch.setattr(feeds, made_by, counted)
    whole, unit = text.split("|")
    with pytest.raises(SourceBroken, match="more than 10000 files"):
        read(whole.replace("{}", "".join(unit.replace("{}", str(number)) for number in range(10_500))), type=type)
    assert made == 10_001


def test_sitemaps_of_an_index_are_listed_once_and_not_without_end() -> None:
    index = "<sitemapindex>{}</sitemapindex>"

    assert read(index.format("<s><loc>/a</loc></s>" * 1000)).more == ["https://files.example/a"]
    with pytest.raises(SourceBroken, match="sitemaps"):
        read(index.format("".join(f"<s><loc>/{number}</loc></s>" for number in range(10_001))))


def test_long_guid_is_not_read_whole_for_each_enclosure(monkeypatch: pytest.MonkeyPatch) -> None:
    read_characters = 0

    def counted(*parts: str, length: int) -> str:
        nonlocal read_characters
        read_characters += sum(map(len, parts))
        return "0" * length

    monkeypatch.setattr(entry, "digest", counted)
    read(RSS_ITEM.format("<guid>" + "g" * 500_000 + "</guid>" + '<enclosure url="https://a.example/1"/>' * 100))

    assert read_characters < 5_000_000


def test_base_longer_than_any_url_is_ignored() -> None:
    text = f'<rss xml:base="https://a.example/{"b" * 100_000}/"><item><link>x</link></item></rss>'

    assert urls(read(text)) == ["https://files.example/x"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f'<rss xmlns="{"u" * 5000}"><item/></rss>', "namespace"),
        (f"<rss xmlns:a = '{'u' * 5000}'><item/></rss>", "namespace"),
        ('<!DOCTYPE rss [<!ATTLIST a b CDATA "long">]><rss><a/></rss>', "declares attributes"),
        ("<rss>" + "<a/>" * 1001 + "</rss>", "elements"),
    ],
    ids=["namespace", "prefix", "default attribute", "elements"],
)
def test_xml_that_would_fill_the_memory_is_refused(text: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_tree, "_MOST_ELEMENTS", 1000)
    with pytest.raises(SourceBroken, match=named):
        read(text)


def test_json_of_very_many_objects_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "_MOST_OBJECTS", 10)
    with pytest.raises(SourceBroken, match="more than 10 objects"):
        read("[" + "{}," * 10 + "{}]", type="application/json")


def test_index_of_very_many_links_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_index, "_MOST_LINKS", 10)
    with pytest.raises(SourceBroken, match="more than 10 links"):
        read('<a href="x">' * 11, type="text/html")


def test_gzipped_list_is_unpacked() -> None:
    packed = gzip.compress(SITEMAP_INDEX.encode())

    assert listing_of(packed, "application/gzip", "https://x.example/sitemap.xml.gz").more == [
        "https://x.example/one.xml"
    ]


@pytest.mark.parametrize("body", [gzip.compress(bytes(40 * 1024 * 1024)), b"\x1f\x8bnone"], ids=["bomb", "damaged"])
def test_gzip_that_is_a_bomb_or_damaged_is_refused(body: bytes) -> None:
    with pytest.raises(SourceBroken):
        listing_of(body, "application/gzip", "https://x.example/")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("json", json.dumps(["https://files.example/good", *([0] * 10_001)])),
        ("sums", f"{HASH}  good.iso\n" + "no digest\n" * 10_001),
        ("sums", f"{HASH}  good.iso\n" + "\n" * 200_000 + "no digest\n"),
        ("rss", "<rss>" + "<item><enclosure url='http://['/></item>" * 10_001 + "</rss>"),
    ],
)
def test_list_with_too_many_bad_entries_is_refused(format: str, text: str) -> None:
    """The reasons for millions of them would fill the memory."""
    with pytest.raises(SourceBroken):
        read(text, format=format)


def test_json_entry_that_cannot_be_read_is_skipped_and_named() -> None:
    listed = ["https://x.example/a", {"name": "no url"}, {"url": "https://x.example/b", "path": 7}, 5, {"url": "/c"}]
    found = listing_of(json.dumps(listed).encode(), "application/json", "https://x.example/list.json")
    assert urls(found) == ["https://x.example/a", "https://x.example/c"]
    assert [text.partition(":")[0] for text in found.skipped] == [
        "entry 1 of the list has no url",
        "entry 2 of the list",
        "entry 3 of the list has no url",
    ]
    with pytest.raises(SourceBroken, match="entry 0 of the list has no url"):
        listing_of(b"[{}]", "application/json", "https://x.example/list.json")


def test_items_without_attachments_follow_the_same_rule_in_every_feed() -> None:
    """They are left out if another item has a file attached; else their pages are listed."""
    page, file = {"id": "1", "url": "https://x.example/news"}, {"id": "2", "url": "https://x.example/p"}
    attached = file | {"attachments": [{"url": "https://x.example/a.mp3"}]}
    for items, expected in (
        ([page, attached], ["https://x.example/a.mp3"]),
        ([page | {"attachments": []}, file], ["https://x.example/news", "https://x.example/p"]),
    ):
        feed = json.dumps({"version": "https://jsonfeed.org/version/1.1", "items": items}).encode()
        found = listing_of(feed, "application/feed+json", "https://x.example/feed.json")
        assert (urls(found), found.skipped) == (expected, [])
