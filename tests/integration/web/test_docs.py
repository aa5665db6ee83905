"""The docs and the OpenAPI document need no key, so they must be cheap."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest

from tests.support.moto.cloud import MotoCloud
from tidegate.sheets.files import CONTENT_TYPES
from tidegate.web.api import build_api
from tidegate.web.openapi import contract, document
from tidegate.web.static import accepts_gzip
from tidegate.web.system import _openapi_asset

GZIP = {"accept-encoding": "gzip, deflate, br"}


def test_docs_and_their_files_are_compressed_and_under_400_kb(cloud: MotoCloud) -> None:
    page = cloud.http("GET", "/docs", headers=GZIP)
    named = re.findall(r'(?:src|href)="([^"]+)"', gzip.decompress(page.body).decode())
    loaded = [cloud.http("GET", f"/{name}", headers=GZIP) for name in named]

    assert {answer.status for answer in loaded} == {200}
    assert {answer.headers["content-encoding"] for answer in (page, *loaded)} == {"gzip"}
    assert sum(len(answer.body) for answer in (page, *loaded)) < 400_000
    assert {name.split(".")[0] for name in named} == {"console/app", "console/docs", "openapi"}


@pytest.mark.parametrize("path", ["/docs", "/start", "/openapi.json", "/"])
def test_open_page_with_known_etag_is_304(cloud: MotoCloud, path: str) -> None:
    first = cloud.http("GET", path)
    again = cloud.http("GET", path, headers={"if-none-match": first.headers["etag"]})

    assert (again.status, again.body) == (304, b"")
    assert first.headers["cache-control"] == "public, max-age=60, must-revalidate"
    assert first.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize("path", ["/docs", "/start", "/openapi.json", "/"])
def test_cached_open_page_is_served_within_50_ms(cloud: MotoCloud, path: str) -> None:
    cloud.http("GET", path, headers=GZIP)
    started = time.process_time()
    for _ in range(5):
        cloud.http("GET", path, headers=GZIP)
    assert (time.process_time() - started) / 5 < 0.05


@pytest.mark.parametrize("path", ["/docs", "/start", "/"])
def test_pages_run_only_their_own_code_and_cannot_be_framed(cloud: MotoCloud, path: str) -> None:
    page = cloud.http("GET", path)

    rules = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert (rules["default-src"], rules["script-src"], rules["style-src"]) == ("'none'", "'self'", "'self'")
    assert (rules["frame-ancestors"], page.headers["x-frame-options"]) == ("'none'", "DENY")
    assert not re.search(rb"<script>|<style|style=|\son\w+=|//[a-z]", page.body)


def test_server_url_of_the_document_is_relative(cloud: MotoCloud) -> None:
    assert cloud.http("GET", "/openapi.json").json()["servers"] == [{"url": "."}]


def test_built_document_is_served_if_there_is_one(
    cloud: MotoCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(document(build_api()))
    assert made == contract(build_api())
    built = tmp_path / "openapi.json"
    built.write_text('{"openapi": "3.1.0"}')
    monkeypatch.setattr("tidegate.web.openapi.BUILT", built)
    _openapi_asset.cache_clear()
    assert cloud.http("GET", "/openapi.json").json() == {"openapi": "3.1.0"}
    built.unlink()
    _openapi_asset.cache_clear()
    assert cloud.http("GET", "/openapi.json").json() == made


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, *", False),
        ("br", False),
        ("", False),
    ],
)
def test_gzip_is_used_only_if_accepted(accepted: str, expected: bool) -> None:
    assert accepts_gzip(accepted) is expected


def test_document_has_all_content_types_of_sync_exports() -> None:
    documented = contract(build_api())["paths"]["/v1/download/sync"]["get"]["responses"]["200"]["content"]
    assert set(documented) == set(CONTENT_TYPES.values())
