"""The first rows of a source, for people who lay out a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.common.ids import Clock, new_id
from tidegate.exports.model import PREFIX
from tidegate.exports.source import Sources
from tidegate.exports.source_json import plain
from tidegate.exports.source_page import Place, read_page

# The smallest page size of an export; a sample is the first rows of such a page.
STEP = 100
ROWS = 20
_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """`answered` has the table settings that the source sent: header, footer, template."""

    rows: list[Any]
    total: int | None
    answered: dict[str, Any]


def sample(source: Sources, project_id: str, source_url: str, clock: Clock) -> Sample:
    """Requests the first page like an export, with a signature; stores and queues nothing."""
    read = source.reader(project_id, new_id(PREFIX, clock()))
    page = read_page(read(source_url, Place(0), STEP, _SECONDS), 0)
    return Sample([plain(row) for row in page.rows[:ROWS]], page.total, page.answered)
