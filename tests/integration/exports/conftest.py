from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer

from tests.support.exports.paged_source import PagedSource
from tests.support.exports.running import ExportWorld
from tests.support.moto.cloud import MotoCloud, Project


@pytest.fixture
def httpserver() -> Iterator[HTTPServer]:
    """Replaces the server of the plugin, which handles one request at a time."""
    with HTTPServer(threaded=True) as server:
        yield server


@pytest.fixture
def source(httpserver: HTTPServer) -> PagedSource:
    return PagedSource(httpserver)


@pytest.fixture
def world(cloud: MotoCloud, project: Project, source: PagedSource) -> ExportWorld:
    return ExportWorld(cloud, project, source)
