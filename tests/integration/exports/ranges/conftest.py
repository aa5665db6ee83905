from __future__ import annotations

import pytest

from tidegate.aws import s3 as part_plan
from tidegate.sheets import files as fragments


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes fragments of some kilobytes, which are copied like large ones."""
    from moto.s3 import models

    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 4000)
    monkeypatch.setattr(part_plan, "SMALLEST_PART", 4000)
    monkeypatch.setattr(fragments, "CLOSED_BYTES", 7000)
    monkeypatch.setattr(fragments, "BEHIND_BYTES", 4000)
