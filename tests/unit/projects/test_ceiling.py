"""What a key can cost at most with the default quotas, and that docs/security.md says so."""

from __future__ import annotations

import pytest

from tests.bench import ceiling, prices
from tidegate.projects.model import DEFAULTS, READ_UNITS
from tidegate.releases.model import MOST_BYTES
from tidegate.settings import Settings


@pytest.fixture(scope="module")
def ways() -> dict[str, list[ceiling.Way]]:
    return ceiling.by_key()


@pytest.mark.parametrize(("key", "span"), ceiling.BARS)
def test_key_with_default_quotas_stays_below_its_bar(ways: dict[str, list[ceiling.Way]], key: str, span: str) -> None:
    assert ceiling.total(ways[key], span) <= ceiling.BARS[key, span]


@pytest.mark.parametrize("quota", ["requests_per_s", "runner_hours_per_day", "egress_bytes_per_day", "stored_bytes"])
def test_quota_a_hundred_times_as_large_is_above_the_bar(quota: str) -> None:
    """Each of these numbers holds the bar: the sum would notice a default that is too large."""
    raised = dict(DEFAULTS) | {quota: DEFAULTS[quota] * 100}
    assert ceiling.total(ceiling.write(raised), "day") > ceiling.BARS["write", "day"]


def test_every_quota_of_a_new_project_is_finite() -> None:
    assert [name for name, limit in DEFAULTS.items() if limit is None] == ["share"]


def test_every_open_route_has_its_own_low_throttle() -> None:
    rates = ceiling.throttles()
    assert {route: rates[route] for route in ceiling.open_routes() if rates[route] > 3} == {}


def test_authorizer_passes_as_many_strangers_as_the_sum_assumes() -> None:
    assert Settings.from_env({}).strangers_per_second == ceiling.STRANGERS_RATE


def test_runner_second_costs_as_much_as_its_read_units() -> None:
    a_second = ceiling._runner(dict(DEFAULTS), "").day / (DEFAULTS["runner_hours_per_day"] * ceiling.HOUR)
    assert a_second >= READ_UNITS * prices.DYNAMODB_READ


@pytest.mark.parametrize("size", [0, MOST_BYTES])
def test_look_at_a_release_costs_no_more_than_it_counts_for(size: int) -> None:
    a_second = ceiling._runner(dict(DEFAULTS), "").day / (DEFAULTS["runner_hours_per_day"] * ceiling.HOUR)
    assert ceiling.look(size) <= ceiling.look_seconds(size) * a_second


def test_security_page_has_the_table_of_the_bench() -> None:
    page = ceiling.SECURITY.read_text("utf-8")
    assert page.split(ceiling.BEGIN)[1].split(ceiling.END)[0].strip() == ceiling.table()
