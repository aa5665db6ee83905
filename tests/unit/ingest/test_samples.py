"""Feeds as WordPress, podcast hosts, GitHub, S3 and Debian mirrors write them: each lists its files and nothing else.

The corpora of public parsers are compared by `make corpora`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.ingest.feeds import Listing, listing_of

SAMPLES = Path(__file__).resolve().parents[2] / "support" / "ingest" / "samples"
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OTHER_HASH = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
BUOY = "https://github.com/tide/buoy/releases"
UPLOADS = "https://harbour.example/wp-content/uploads/2026/11"
POOL = "http://mirror.example/debian/pool/main/b/buoy/"
ISO = "https://cdimage.example/debian-cd/13.2.0/arm64/iso-cd/"


def read(name: str, base: str, content_type: str) -> Listing:
    return listing_of((SAMPLES / name).read_bytes(), content_type, base)


@pytest.mark.parametrize(
    ("name", "base", "content_type", "format", "expected"),
    [
        (
            "wordpress.rss",
            "https://harbour.example/feed/",
            "application/rss+xml; charset=UTF-8",
            "rss",
            [f"{UPLOADS}/tables-dec.pdf", f"{UPLOADS}/charts%20dec.zip"],
        ),
        (
            "podcast.rss",
            "https://cdn.salt.example/feed.xml",
            "text/xml",
            "rss",
            [
                "https://dts.example/redirect.mp3/cdn.salt.example/ep/12.mp3?source=rss&token=a%2Bb",
                "https://cdn.salt.example/ep/11.mp3",
            ],
        ),
        (
            "github_releases.json",
            "https://api.github.com/repos/tide/buoy/releases",
            "application/json; charset=utf-8",
            "json",
            [f"{BUOY}/download/v2.1.0/buoy-linux-arm64.tar.gz", f"{BUOY}/download/v2.1.0/SHA256SUMS"],
        ),
        ("github_releases.atom", f"{BUOY}.atom", "application/atom+xml", "atom", [f"{BUOY}/tag/v2.1.0"]),
        (
            "s3_v2.xml",
            "https://open-tides.s3.amazonaws.com/?list-type=2&prefix=2026/&delimiter=/",
            "application/xml",
            "s3",
            [
                "https://open-tides.s3.amazonaws.com/2026/level%20one%2Btwo.csv",
                "https://open-tides.s3.amazonaws.com/2026/gauge%237.bin",
            ],
        ),
        (
            "s3_v1_encoded.xml",
            "https://store.example/mirror?encoding-type=url&max-keys=2",
            "application/xml",
            "s3",
            [
                "https://store.example/mirror/a/%E6%BD%AE%E6%B1%90%20tables.csv",
                "https://store.example/mirror/a/b%2Bc.csv",
            ],
        ),
        (
            "debian_pool.html",
            POOL,
            "text/html;charset=UTF-8",
            "html",
            [f"{POOL}buoy_2.1.0-1%2bb1_arm64.deb", f"{POOL}buoy_2.1.0-1.dsc"],
        ),
        (
            "debian_nginx.html",
            ISO,
            "text/html",
            "html",
            [f"{ISO}SHA256SUMS", f"{ISO}SHA256SUMS.sign", f"{ISO}debian-13.2.0-arm64-netinst.iso"],
        ),
        (
            "SHA256SUMS",
            f"{ISO}SHA256SUMS",
            "text/plain",
            "sums",
            [f"{ISO}debian-13.2.0-arm64-netinst.iso", f"{ISO}firmware/brcm%204330.bin"],
        ),
        (
            "wordpress_sitemap.xml",
            "https://harbour.example/wp-sitemap-posts.xml",
            "application/xml; charset=UTF-8",
            "sitemap",
            ["https://harbour.example/charts/north.pdf", "https://harbour.example/charts/south.pdf?v=2&lang=en"],
        ),
        (
            "gb2312.rss",
            "http://tide.example/rss",
            "text/xml",
            "rss",
            ["http://tide.example/文件/十一月.pdf"],
        ),
    ],
)
def test_sample_lists_its_files(name: str, base: str, content_type: str, format: str, expected: list[str]) -> None:
    found = read(name, base, content_type)

    assert (found.format, [entry.url for entry in found.entries]) == (format, expected)


def test_samples_have_digests_sizes_titles_and_dates() -> None:
    releases = read("github_releases.json", BUOY, "application/json").entries
    sums = read("SHA256SUMS", f"{ISO}SHA256SUMS", "text/plain").entries
    objects = read("s3_v2.xml", "https://open-tides.s3.amazonaws.com/", "application/xml").entries
    posts = read("wordpress.rss", "https://harbour.example/feed/", "application/rss+xml").entries
    chinese = read("gb2312.rss", "http://tide.example/rss", "text/xml").entries

    assert [(entry.signature, entry.size) for entry in releases] == [(HASH, 7340032), (None, 91)]
    assert [entry.signature for entry in sums] == [HASH, OTHER_HASH]
    assert [(entry.path, entry.size) for entry in objects] == [
        ("/2026/level one+two.csv", 434234),
        ("/2026/gauge#7.bin", 52428800),
    ]
    assert (posts[0].title, posts[0].published) == ("Tide tables – December", "Sun, 15 Nov 2026 09:10:11 +0000")
    assert (chinese[0].title, chinese[0].path) == ("十一月潮汐表", "/文件/十一月.pdf")


@pytest.mark.parametrize(
    ("name", "base", "next_page"),
    [
        (
            "s3_v2.xml",
            "https://open-tides.s3.amazonaws.com/?prefix=2026/&delimiter=/",
            "https://open-tides.s3.amazonaws.com/?prefix=2026/&delimiter=/"
            "&continuation-token=1ueGcxLPRx1Tr%2FXYExHnhbYLgveDs2J%2Fwm36Hy4vbOwM%3D&list-type=2",
        ),
        (
            "s3_v1_encoded.xml",
            "https://store.example/mirror?encoding-type=url",
            "https://store.example/mirror?encoding-type=url&marker=a%2Fb%2Bc.csv",
        ),
    ],
)
def test_listing_that_is_cut_short_names_its_next_page(name: str, base: str, next_page: str) -> None:
    assert read(name, base, "application/xml").more == [next_page]
