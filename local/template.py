"""Loads template.yaml: for the emulator, for tests, and as AWS sees it after its transforms."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

from local.place import ROOT

LOOP = "Fn::ForEach::"
EXTENSIONS = "AWS::LanguageExtensions"


# How a template names the alias and version of a function or state machine in SAM.
_ALIAS, _VERSION, _MACHINE_ALIAS = ".Alias", ".Version", "MachineAliaslive"
_GRADUAL = ("AutoPublishAlias", "AutoPublishAliasAllProperties", "DeploymentPreference")


def load() -> dict[str, Any]:
    """Returns the template for the emulator: loops (Fn::ForEach) are expanded, aliases and versions are removed."""
    template: dict[str, Any] = _without_aliases(expanded())
    for properties in (
        template["Globals"]["Function"],
        *(resource["Properties"] for resource in template["Resources"].values() if "Properties" in resource),
    ):
        for name in _GRADUAL:
            properties.pop(name, None)
    return template


def expanded() -> dict[str, Any]:
    """Returns the template after CloudFormation's language extensions, before the SAM transform."""
    template: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())
    template["Resources"] = _looked_up(_written_out(template["Resources"]), template["Mappings"])
    (template["Transform"],) = (name for name in template["Transform"] if name != EXTENSIONS)
    return template


def transformed(**parameters: str) -> dict[str, Any]:
    """Returns the template after the SAM transform, with these parameters. The code is treated as uploaded to S3."""
    template = expanded()
    for resource in template["Resources"].values():
        for name in ("CodeUri", "ContentUri", "DefinitionUri"):
            if isinstance(path := resource.get("Properties", {}).get(name), str):
                resource["Properties"][name] = {"Bucket": "artifacts", "Key": path}
    with patch.dict(os.environ, AWS_DEFAULT_REGION="us-east-1"):
        result: dict[str, Any] = transform(template, parameters, _NoManagedPolicies())
    return result


class _NoManagedPolicies:
    """An empty list of AWS's managed policies. SAM asks for their ARNs, but the template uses no managed policy."""

    def load(self) -> dict[str, str]:
        return {}


def _without_aliases(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_aliases(inner) for inner in value]
    if isinstance(value, str):
        # A machine that starts itself is named with its alias too.
        own = value.removesuffix(":live") if ":stateMachine:" in value else value
        return own.replace("FunctionAliaslive}", "Function.Arn}")
    if not isinstance(value, dict):
        return value
    name = value.get("Ref")
    if isinstance(name, str) and name.endswith((_ALIAS, _VERSION)):
        return {"Fn::GetAtt": [name.rpartition(".")[0], "Arn"]}
    if isinstance(name, str) and name.endswith(_MACHINE_ALIAS):
        return {"Ref": name.removesuffix("Aliaslive")}
    attribute = value.get("Fn::GetAtt")
    if isinstance(attribute, list) and _VERSION in f".{attribute[1]}":
        return "$LATEST"
    return {key: _without_aliases(inner) for key, inner in value.items()}


def _written_out(value: Any) -> Any:
    """Replaces each loop by its body, once for every item of its list."""
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, inner in value.items():
        if key.startswith(LOOP):
            variable, items, body = inner
            for item in items:
                out |= _written_out(_with(body, variable, item))
        else:
            out[key] = _written_out(inner)
    return out


def _with(value: Any, variable: str, item: str) -> Any:
    if isinstance(value, str):
        return value.replace("${" + variable + "}", item)
    if isinstance(value, list):
        return [_with(inner, variable, item) for inner in value]
    if not isinstance(value, dict):
        return value
    if value == {"Ref": variable}:
        return item
    out = {_with(key, variable, item): _with(inner, variable, item) for key, inner in value.items()}
    text = out.get("Fn::Sub")
    # With nothing left to substitute, a plain string: it is allowed in places where Fn::Sub is not.
    return text if isinstance(text, str) and "${" not in text else out


def _looked_up(value: Any, mappings: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_looked_up(inner, mappings) for inner in value]
    if not isinstance(value, dict):
        return value
    path = value.get("Fn::FindInMap")
    if path and all(isinstance(step, str) for step in path):
        name, key, attribute = path
        return mappings[name][key][attribute]
    return {key: _looked_up(inner, mappings) for key, inner in value.items()}
