"""The docs and the OpenAPI document need no key, so they must be cheap."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from local.place import ROOT as REPOSITORY
from tests.support.moto.cloud import MotoCloud
from tidegate.sheets.files import CONTENT_TYPES
from tidegate.web.api import build_api
from tidegate.web.console.bundle import ROOT
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


def test_rules_of_the_api_name_every_area_of_routes() -> None:
    rules = (REPOSITORY / "docs/api.md").read_text("utf-8")
    areas = {path.split("/")[2] for path in contract(build_api())["paths"] if path.startswith("/v1/")}
    assert [area for area in sorted(areas) if not re.search(rf"`/v1/{area}[`/]", rules)] == []


SEGMENTS = r"[\w{}/.:…-]+"
DOCS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs").glob("*/*.md")]


def test_routes_and_bodies_that_pages_show_exist() -> None:
    made = contract(build_api())
    calls = {
        (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/]+", path))): call
        for path, methods in made["paths"].items()
        for method, call in methods.items()
    }
    named = re.compile(rf"\b([A-Z]{{3,6}}) +(/v1/{SEGMENTS})(?:\?[\w=…]*)?`?(?=(?: `?(\{{.*))?)")
    shown = [
        (page.name, *each) for page in DOCS for each in named.findall(re.sub(r"\s+", " ", page.read_text("utf-8")))
    ]
    assert len(shown) > 60
    for page, method, path, body in shown:
        found = [call for (verb, route), call in calls.items() if verb == method and route.fullmatch(path.rstrip("."))]
        assert found, f"{page}: {method} {path}"
        if body:
            known = fields_of(found[0]["requestBody"]["content"]["application/json"]["schema"], made)
            assert known is None or not set(top_names(body)) - known, f"{page}: {method} {path} {body[:60]}"


def fields_of(schema: dict[str, Any], made: dict[str, Any]) -> set[str] | None:
    """The fields of a body; None if any name is one."""
    if "$ref" in schema:
        schema = made["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        (schema,) = (each for each in schema["anyOf"] if each.get("type") != "null")
        return fields_of(schema, made)
    return set(schema["properties"]) if "properties" in schema else None


def top_names(text: str) -> list[str]:
    """The names of an object that begins a text, written as JSON or in short: `{"a": 1}`, `{a: …}`, `{a, b?}`."""
    depth, flat = 0, ""
    for letter in text:
        depth += letter in "{["
        flat += letter if depth == 1 else ""
        depth -= letter in "}]"
        if not depth:
            break
    return re.findall(r'[{,] *"?(\w+)', flat)


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


def test_operations_sections_answers_and_common_parameters_have_chinese_texts() -> None:
    made = contract(build_api())
    calls = [call for paths in (made["paths"], made["webhooks"]) for found in paths.values() for call in found.values()]
    texts = {call["summary"] for call in calls} | {text for tag in made["tags"] for text in tag.values()}
    answers = [answer for call in calls for answer in call["responses"].values()]
    answers += made["components"]["responses"].values()
    texts |= {answer["description"] for answer in answers if "$ref" not in answer}
    named = Counter(each["description"] for call in calls for each in call.get("parameters", []))
    texts |= {text for text, times in named.items() if times >= 4}
    entries = dict(re.findall(r'"([^"]+)": "([^"]+)"', (ROOT / "docs" / "words_zh.js").read_text("utf-8")))

    assert set(entries) == texts
    assert [text for text in entries.values() if not re.search(r"[\u4e00-\u9fff]", text)] == []
