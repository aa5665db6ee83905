"""The functions accept their sample events."""

from __future__ import annotations

import json

import pytest

from tests.support.moto.cloud import MotoCloud
from tests.support.template import ROOT
from tidegate.errors import RecordNotFound


@pytest.mark.parametrize("name", ["close_window", "prepare_file", "dispatch_transfer", "poll_transfer", "finish_job"])
def test_sample_event_of_a_step_names_a_missing_job(cloud: MotoCloud, name: str) -> None:
    with pytest.raises(RecordNotFound):
        cloud.invoke(name, json.loads((ROOT / "events" / f"{name}.json").read_text()))


def test_sample_event_of_collect_targets_is_accepted(cloud: MotoCloud) -> None:
    event = json.loads((ROOT / "events/collect_targets.json").read_text())
    assert cloud.invoke("collect_targets", event) == {"batchItemFailures": []}


def test_sample_event_of_agents_gets_an_empty_inbox(cloud: MotoCloud) -> None:
    answer = cloud.invoke("agents", json.loads((ROOT / "events/agents.json").read_text()))
    assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"items": [], "releases": None})
