"""Each function has one sample event, for `sam local invoke` and for people, and takes it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from tests.support.moto.cloud import MotoCloud
from tests.support.template import ROOT, directory_of, functions
from tidegate.errors import DomainError


@pytest.mark.parametrize("name", sorted(directory_of(function) for function in functions().values()))
def test_function_takes_its_sample_event(cloud: MotoCloud, name: str) -> None:
    event = json.loads((ROOT / "events" / f"{name}.json").read_text())
    # The records that a sample names are not there, and saying so is a right answer; a KeyError is not.
    with suppress(DomainError):
        cloud.invoke(name, event)
