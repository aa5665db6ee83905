"""Reads template.yaml for tests: to create its resources on moto, and to check permissions."""

from __future__ import annotations

from functools import cache
from typing import Any

from local import template
from local.place import ROOT

__all__ = [
    "ROOT",
    "directory_of",
    "functions",
    "load_template",
    "queue_functions",
    "resources",
    "statements",
    "timeout_of",
    "variables",
]


@cache
def load_template() -> dict[str, Any]:
    return template.load()


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """Returns the resources of one type, by logical id."""
    declared = load_template()["Resources"]
    return {name: resource for name, resource in declared.items() if resource["Type"] == kind}


def functions() -> dict[str, dict[str, Any]]:
    """Returns the properties of every function, by logical id."""
    return {name: function["Properties"] for name, function in resources("AWS::Serverless::Function").items()}


def variables(function: dict[str, Any]) -> dict[str, Any]:
    """Returns the environment variables of a function: those of all functions and its own."""
    common: dict[str, Any] = load_template()["Globals"]["Function"]["Environment"]["Variables"]
    own: dict[str, Any] = function.get("Environment", {}).get("Variables", {})
    return common | own


def directory_of(function: dict[str, Any]) -> str:
    """Returns the name of the function's folder: `collect_targets` for `functions/collect_targets/`."""
    return str(function["CodeUri"]).strip("/").rsplit("/", 1)[-1]


@cache
def timeout_of(directory: str) -> int:
    """Returns the timeout in seconds of the function in this directory."""
    own = next((function for function in functions().values() if directory_of(function) == directory), {})
    return int(own.get("Timeout") or load_template()["Globals"]["Function"]["Timeout"])


def queue_functions() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns which function reads which queue: queue's logical id → (function's directory, mapping)."""
    known = functions()
    mappings = [mapping["Properties"] for mapping in resources("AWS::Lambda::EventSourceMapping").values()]
    return {
        mapping["EventSourceArn"]["Fn::GetAtt"][0]: (
            directory_of(known[mapping["FunctionName"]["Fn::GetAtt"][0]]),
            mapping,
        )
        for mapping in mappings
    }


def statements(name: str) -> list[dict[str, Any]]:
    """Returns the policy statements of the function or state machine of that logical id."""
    properties = load_template()["Resources"][name]["Properties"]
    if "Role" in properties:
        role = load_template()["Resources"][properties["Role"]["Fn::GetAtt"][0]]["Properties"]
        return [statement for policy in role["Policies"] for statement in policy["PolicyDocument"]["Statement"]]
    return [statement for policy in properties["Policies"] for statement in policy["Statement"]]
