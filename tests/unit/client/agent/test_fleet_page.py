"""The guides to the fleet and to distribution name the codes and metrics that the agent has."""

from __future__ import annotations

import re

import pytest

from tests.support.template import ROOT
from tidegate_client.agent.codes import Code
from tidegate_client.agent.service import prometheus_text

FLEET = (ROOT / "docs/guides/fleet.md").read_text(encoding="utf-8")
DISTRIBUTE = (ROOT / "docs/guides/distribute.md").read_text(encoding="utf-8")


def test_distribution_guide_explains_every_result_code() -> None:
    table = DISTRIBUTE.partition("| code of")[2].partition("\n\n")[0]
    documented = {int(code) for row in table.splitlines()[2:] for code in re.findall(r"\d+", row.split("|")[1])}
    assert {int(code) for code in Code} - {Code.DONE, Code.IN_PROGRESS, Code.INTERNAL} <= documented


@pytest.mark.parametrize("metric", ["healthy", "connected", "untold_results"])
def test_fleet_page_alerts_use_existing_metrics(metric: str) -> None:
    assert f"tidegate_agent_{metric}" in FLEET
    assert f"tidegate_agent_{metric} 1" in prometheus_text({(metric, ()): 1})
