from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ingest import Library
from tests.support.moto_cloud import MotoCloud, Project
from tests.support.sources import FileSource, file_source


@pytest.fixture
def source() -> Iterator[FileSource]:
    with file_source() as made:
        yield made


@pytest.fixture
def library(cloud: MotoCloud, project: Project) -> Library:
    return Library(cloud, project)
