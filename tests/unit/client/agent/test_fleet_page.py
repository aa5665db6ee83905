"""The fleet chapter of the docs names the codes and metrics that the agent has."""

from __future__ import annotations

import re

import pytest

from tests.support.template import ROOT
from tidegate_client.agent.codes import Code
from tidegate_client.agent.service.statistics import prometheus_text

PAGE = (ROOT / ".github/docs/fleet.md").read_text(encoding="utf-8")


def test_fleet_page_explains_every_result_code() -> None:
    documented = {
        int(code) for code in re.findall(r"\b\d{3,4}\b", PAGE[PAGE.index("| code of") : PAGE.index("## Watch it")])
    }
    assert {int(code) for code in Code} - {Code.DONE, Code.IN_PROGRESS, Code.INTERNAL} <= documented


@pytest.mark.parametrize("metric", ["healthy", "connected", "untold_results"])
def test_fleet_page_alerts_use_existing_metrics(metric: str) -> None:
    assert f"tidegate_agent_{metric}" in PAGE
    assert f"tidegate_agent_{metric} 1" in prometheus_text({(metric, ()): 1})
