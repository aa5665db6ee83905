"""The zone of an agent without --zone: on EC2, the availability zone that the instance's metadata names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.patience import idle_clock
from tidegate_client.agent.aws import availability_zone

TOKEN = "AQAEA-token"


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    path = tmp_path / "sys_vendor"
    path.write_text("Amazon EC2\n")
    return path


def serve(httpserver: HTTPServer, zone: str = "eu-central-1b", status: int = 200) -> str:
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    httpserver.expect_request("/latest/api/token", "PUT", headers=lifetime).respond_with_data(TOKEN, status)
    path = "/latest/meta-data/placement/availability-zone"
    httpserver.expect_request(path, "GET", headers={"X-aws-ec2-metadata-token": TOKEN}).respond_with_data(zone)
    return f"127.0.0.1:{httpserver.port}"


def test_instance_is_in_the_zone_that_its_metadata_names(httpserver: HTTPServer, vendor: Path) -> None:
    assert availability_zone(vendor, serve(httpserver)) == "eu-central-1b"


def test_other_machine_asks_nobody(httpserver: HTTPServer, tmp_path: Path) -> None:
    service = serve(httpserver)
    (tmp_path / "other").write_text("QEMU\n")
    assert availability_zone(tmp_path / "other", service) is None
    assert availability_zone(tmp_path / "missing", service) is None
    assert httpserver.log == []


def test_refusing_metadata_service_gives_no_zone(httpserver: HTTPServer, vendor: Path) -> None:
    assert availability_zone(vendor, serve(httpserver, status=403)) is None


def test_silent_metadata_service_holds_the_start_for_seconds_only(httpserver: HTTPServer, vendor: Path) -> None:
    """In a container the answer's hop limit may be too small: it never arrives."""
    httpserver.expect_request("/latest/api/token").respond_with_handler(lambda _: time.sleep(3))  # type: ignore[arg-type, return-value]
    began = idle_clock()
    assert availability_zone(vendor, f"127.0.0.1:{httpserver.port}") is None
    assert idle_clock() - began < 2.5
