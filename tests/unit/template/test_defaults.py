"""Each default has one value: the parameter's in template.yaml and the setting's in settings.py agree."""

from __future__ import annotations

from dataclasses import fields

import pytest

from local import template
from tests.support.template import functions, load_template, variables
from tidegate.settings import Settings

DEFAULTS = {field.name.upper(): field.default for field in fields(Settings)}
PARAMETERS = load_template()["Parameters"]
SET_BY_PARAMETER = sorted(
    {
        (name, value["Ref"])
        for function in functions().values()
        for name, value in variables(function).items()
        if name in DEFAULTS and isinstance(value, dict) and value.get("Ref") in PARAMETERS
    }
)


@pytest.mark.parametrize(("variable", "parameter"), SET_BY_PARAMETER)
def test_parameter_and_setting_have_the_same_default(variable: str, parameter: str) -> None:
    assert str(DEFAULTS[variable]) == str(PARAMETERS[parameter].get("Default", ""))


def test_every_variable_of_a_function_is_a_setting() -> None:
    known = {*DEFAULTS, "RELEASE", "POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE", "POWERTOOLS_LOG_LEVEL"}
    assert {name for function in functions().values() for name in variables(function)} <= known


def test_every_parameter_is_used() -> None:
    text = str({key: value for key, value in load_template().items() if key != "Parameters"})
    assert [name for name in PARAMETERS if f"'Ref': '{name}'" not in text and "${" + name + "}" not in text] == []


def test_loops_are_written_out_for_the_emulator() -> None:
    resources = template.load()["Resources"]
    assert not [name for name in resources if name.startswith("Fn::") or "${" in name]
    queue = resources["TargetsQueue"]["Properties"]
    assert queue["VisibilityTimeout"] == 181
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["TargetsDeadLetters", "Arn"]}
    assert resources["WakeupsAgeAlarm"]["Properties"]["Threshold"] == 1200
