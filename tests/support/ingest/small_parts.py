"""Allows parts below S3's minimum size, so that a small file can have many parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from moto.s3 import models

from tidegate.ingest import model as ingest


@contextmanager
def small_parts(size: int, parallel_from: int) -> Iterator[None]:
    with (
        patch.object(models, "S3_UPLOAD_PART_MIN_SIZE", size),
        patch.object(ingest, "PART_BYTES", size),
        patch.object(ingest, "PARALLEL_FROM", parallel_from),
    ):
        yield
