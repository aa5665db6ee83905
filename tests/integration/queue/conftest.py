from __future__ import annotations

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue


@pytest.fixture
def queue(cloud: MotoCloud, project: Project) -> TestQueue:
    return TestQueue(cloud, project)
