"""template.yaml as data: what the tests build on moto, and what they assert of permissions."""

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
    """The resources of one type, by logical id."""
    found = load_template()["Resources"]
    return {name: resource for name, resource in found.items() if resource["Type"] == kind}


def functions() -> dict[str, dict[str, Any]]:
    """Properties of every function, by logical id."""
    return {name: function["Properties"] for name, function in resources("AWS::Serverless::Function").items()}


def variables(function: dict[str, Any]) -> dict[str, Any]:
    """What the function finds in its environment: everybody's variables and its own."""
    common: dict[str, Any] = load_template()["Globals"]["Function"]["Environment"]["Variables"]
    own: dict[str, Any] = function.get("Environment", {}).get("Variables", {})
    return common | own


def directory_of(function: dict[str, Any]) -> str:
    """`functions/collect_targets/` is `collect_targets`."""
    return str(function["CodeUri"]).strip("/").rsplit("/", 1)[-1]


@cache
def timeout_of(directory: str) -> int:
    """Seconds that Lambda gives a function, named by its directory."""
    own = next((function for function in functions().values() if directory_of(function) == directory), {})
    return int(own.get("Timeout") or load_template()["Globals"]["Function"]["Timeout"])


def queue_functions() -> dict[str, tuple[str, dict[str, Any]]]:
    """Which function takes which queue: queue's logical id → (function's directory, mapping)."""
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
    """What the function or machine of that logical id may do by rights of its own."""
    properties = load_template()["Resources"][name]["Properties"]
    if "Role" in properties:
        role = load_template()["Resources"][properties["Role"]["Fn::GetAtt"][0]]["Properties"]
        return [statement for policy in role["Policies"] for statement in policy["PolicyDocument"]["Statement"]]
    return [statement for policy in properties["Policies"] for statement in policy["Statement"]]
