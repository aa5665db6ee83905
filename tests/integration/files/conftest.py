"""Most tests of files are of a project without a quota of bytes; those of the quota set one."""

from __future__ import annotations

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import update


@pytest.fixture(autouse=True)
def _without_default_quotas(cloud: MotoCloud, project: Project) -> None:
    """As a version without default quotas stored the project."""
    cloud.app.table.write(update(keys.project(project.id), removes=("has_default_quotas",)))
