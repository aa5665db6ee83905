"""A stored credential is sent to the source of an export, and to no other host."""

from __future__ import annotations

import pytest

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld


@pytest.fixture
def shop(world: ExportWorld) -> ExportWorld:
    world.source.rows = numbered(1650)
    store(world, world.source.url.removesuffix("/rows"))
    return world


def store(world: ExportWorld, origin: str) -> None:
    body = {"headers": {"x-token": "s3cret"}, "origins": [origin]}
    answer = world.cloud.http("PUT", "/v1/credentials/shop", json=body, key=world.project.key)
    assert answer.status in (200, 204), answer.body


@pytest.mark.parametrize("rows", [250, 1650])
def test_every_request_has_the_stored_headers(shop: ExportWorld, rows: int) -> None:
    """With 250 rows pages are staged, with 1,650 they are rendered in ranges."""
    shop.source.rows = numbered(rows)
    shop.export(step=100, source_headers={"credential": "shop"})
    assert {request.headers.get("x-token") for request in shop.source.requests} == {"s3cret"}


def test_without_credential_no_header_is_sent(shop: ExportWorld) -> None:
    shop.export(step=100)
    assert {request.headers.get("x-token") for request in shop.source.requests} == {None}


def test_source_of_another_origin_gets_no_request(shop: ExportWorld) -> None:
    store(shop, "https://elsewhere.example")
    task_id = shop.submit(step=100, source_headers={"credential": "shop"})
    shown = shop.run(task_id)
    assert shown["status"] == "failed"
    assert "is not for" in shown["failed_reason"]
    assert shop.source.requests == []


def test_unknown_credential_fails_with_its_name(shop: ExportWorld) -> None:
    shown = shop.run(shop.submit(step=100, source_headers={"credential": "other"}))
    assert (shown["status"], "other" in shown["failed_reason"]) == ("failed", True)


def test_sync_export_reads_no_secret(shop: ExportWorld) -> None:
    body = {"source_url": shop.source.url, "source_headers": {"credential": "shop"}}
    answer = shop.cloud.http("POST", "/v1/download/sync", json=body, key=shop.project.key)
    assert (answer.status, answer.json()["code"]) == (413, "use_async")
