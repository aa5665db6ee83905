from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.common.json_input import read_date
from tidegate.ingest.feeds import Entry, chosen
from tidegate.ingest.model import source_of

NONSENSE = [
    "",
    " ",
    "soon",
    "Mon, 16 Nov 99999999999999999999 12:00:00 GMT",
    "Mon, 16 Nov 2026 99999999999999999999:00:00 GMT",
    "Mon, 16 Nov 2026 12:00:00 +99999999999999999999",
]


def test_date_with_and_without_time_zone_is_read_as_utc() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert read_date("Mon, 16 Nov 2026 12:00:00 GMT") == noon
    assert read_date("Mon, 16 Nov 2026 13:00:00 +0100") == noon
    assert read_date("Mon, 16 Nov 2026 12:00:00 -0000") == noon


@pytest.mark.parametrize("text", NONSENSE)
def test_text_that_is_no_date_is_none(text: str) -> None:
    assert read_date(text) is None


@pytest.mark.parametrize("text", NONSENSE)
def test_source_with_dates_that_make_no_sense_is_still_read(text: str) -> None:
    assert source_of({"content-length": "7", "last-modified": text, "date": text}).last_modified is None


@pytest.mark.parametrize("text", NONSENSE)
def test_entry_with_a_date_that_makes_no_sense_has_year_zero(text: str) -> None:
    (placed,) = chosen([Entry("http://x/a", "/a", "a", "1", published=text)], template="/{year}/{name}")
    assert placed.path == "/0000/a"
