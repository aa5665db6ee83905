from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ingest.running import Library
from tests.support.ingest.sources import FileSource, file_source
from tests.support.moto.cloud import MotoCloud, Project


@pytest.fixture
def source() -> Iterator[FileSource]:
    with file_source() as made:
        yield made


@pytest.fixture
def library(cloud: MotoCloud, project: Project) -> Library:
    return Library(cloud, project)
