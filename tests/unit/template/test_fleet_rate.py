"""Hosts and callers have throttles of their own, and 10,000 hosts work with the documented `FleetRate`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.bench import ceiling
from tests.support.template import ROOT, load_template, resources
from tidegate.distribution.fleet import FLEET_BURST, spread_seconds
from tidegate.web.api import build_api

HOSTS = 10_000
# The agent's own times: docs/guides/fleet.md, and tests/unit/client/agent for the pauses before it connects again.
POLL_SECONDS, RECONNECT_SECONDS = 120, 30
STAGE = resources("AWS::ApiGatewayV2::Stage")["HttpStage"]["Properties"]
FLEET_RATE = {"Ref": "FleetRate"}


def documented() -> int:
    """What the page of operations names for large fleets."""
    (row,) = re.findall(r"^\| `FleetRate`.*", (ROOT / "docs/operations.md").read_text("utf-8"), re.MULTILINE)
    return int(re.findall(r"; (\d+) for more than", row)[0])


def routes_of_hosts() -> set[str]:
    """Routes that a key of scope `agent` is made for, and the tickets with which hosts connect."""
    api = build_api()
    api.include_all()
    own = {f"{method} {rule}" for (method, rule), scope in api.scopes.items() if scope == "agent"}
    return {route.replace("<", "{").replace(">", "}") for route in own} | {"POST /v1/ws-tickets"}


def test_every_route_of_hosts_has_the_fleets_rate() -> None:
    settings = STAGE["RouteSettings"]
    assert {route for route in settings if settings[route]["ThrottlingRateLimit"] == FLEET_RATE} == routes_of_hosts()
    socket = resources("AWS::ApiGatewayV2::Stage")["WebSocketStage"]["Properties"]["RouteSettings"]["$connect"]
    assert socket["ThrottlingRateLimit"] == FLEET_RATE


def test_hosts_cannot_take_the_callers_share() -> None:
    callers = [STAGE["DefaultRouteSettings"], STAGE["RouteSettings"]["POST /v1/downloads/batch"]]
    assert [each["ThrottlingRateLimit"] for each in callers] == [{"Ref": "ApiRate"}, 5]
    # A throttle of a route holds for it alone; `$default` has all that have no route of their own.
    keys = {each["Properties"]["RouteKey"] for each in resources("AWS::ApiGatewayV2::Route").values()}
    assert routes_of_hosts() <= keys


def test_burst_that_the_spread_counts_on_is_the_templates() -> None:
    for route in ("GET /v1/agents/{agent_id}/transfers", "POST /v1/agents/{agent_id}/results"):
        assert STAGE["RouteSettings"][route]["ThrottlingBurstLimit"] == FLEET_BURST


def test_ten_thousand_hosts_work_with_the_documented_rate() -> None:
    rate = documented()
    assert rate >= HOSTS / POLL_SECONDS, "polls of hosts without connections"
    spread = spread_seconds(HOSTS, rate)
    assert spread <= 20
    assert FLEET_BURST + rate * spread >= HOSTS, "one Job of all hosts: none is refused"
    assert rate * RECONNECT_SECONDS >= HOSTS, "all connections at once: none is refused"


@pytest.mark.parametrize(("hosts", "seconds"), [(100, 0), (2000, 4), (3000, 30), (10_000, 120)])
def test_job_spreads_over_what_the_default_rate_passes(hosts: int, seconds: int) -> None:
    assert spread_seconds(hosts, load_template()["Parameters"]["FleetRate"]["Default"]) == seconds


def test_guide_says_what_strangers_cost_with_that_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(value: Any) -> float:
        return float(documented()) if value == FLEET_RATE else usual(value)

    usual = ceiling._rate
    monkeypatch.setattr(ceiling, "_rate", raised)
    dollars = ceiling.total(ceiling.without_key(), "hour")
    assert f"Strangers can then cost ${dollars:.0f} an hour" in (ROOT / "docs/guides/fleet.md").read_text("utf-8")
