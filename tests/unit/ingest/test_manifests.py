"""Manifests: JSON lists and HTML indexes."""

from __future__ import annotations

import json

import pytest

from tidegate.errors import SourceBroken
from tidegate.ingest.feeds import listing_of

BASE = "https://files.example/pub/list.json"
JSON = "application/json"


def entry_of(item: object) -> dict[str, object]:
    (found,) = listing_of(json.dumps([item]).encode(), JSON, BASE).entries
    return {name: getattr(found, name) for name in ("url", "path", "name", "signature", "size")}


def test_plain_url_is_resolved_against_the_manifest() -> None:
    assert entry_of("data/a%20b.csv") == {
        "url": "https://files.example/pub/data/a%20b.csv",
        "path": "/pub/data/a b.csv",
        "name": "a b.csv",
        "signature": None,
        "size": None,
    }


def test_described_file_keeps_its_fields() -> None:
    described = {"url": "/x", "path": "/in/y", "name": "z", "sha256": "A" * 64, "size": 7}

    assert entry_of(described) == {
        "url": "https://files.example/x",
        "path": "/in/y",
        "name": "z",
        "signature": "a" * 64,
        "size": 7,
    }


@pytest.mark.parametrize("field", ["etag", "size", "signature", "last_modified", "version"])
def test_fingerprint_changes_with_each_version_field(field: str) -> None:
    def fingerprint(**item: object) -> str:
        return listing_of(json.dumps({"files": [{"url": "/x", **item}]}).encode(), JSON, BASE).entries[0].fingerprint

    assert fingerprint(**{field: 1}) != fingerprint(**{field: 2})
    assert fingerprint(**{field: 1}) == fingerprint(**{field: 1})


@pytest.mark.parametrize(
    "body",
    ['["http://[half"]', "{", "7", '{"other": []}', "[7]", '[{"path": "/x"}]', '[{"url": "/x", "path": "/../y"}]'],
)
def test_other_content_is_refused(body: str) -> None:
    with pytest.raises(SourceBroken):
        listing_of(body.encode(), JSON, BASE)


def test_file_listed_twice_is_one_entry() -> None:
    assert len(listing_of(b'["/x", "/x#part"]', JSON, BASE).entries) == 1


def test_index_of_apache_or_nginx_lists_its_files_only() -> None:
    page = b"""<table><tr><th><a href="?C=N;O=D">Name</a></th></tr>
        <tr><td><a href="/">Parent</a></td></tr><tr><td><a href="deep/">deep/</a></td></tr>
        <tr><td><a href="a.zip">a.zip</a></td><td>2026-11-16 05:00</td><td>4K</td></tr>
        <tr><td><a href="b.zip">b.zip</a></td><td>2026-11-16 05:00</td><td>4K</td></tr></table>"""

    found = listing_of(page, "text/html", "https://files.example/pub/").entries

    assert [entry.url for entry in found] == ["https://files.example/pub/a.zip", "https://files.example/pub/b.zip"]
