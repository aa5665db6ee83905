"""template.yaml as data: what the tests build on moto, and what they assert of permissions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):
    pass


def _intrinsic(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]
    if suffix == "Ref":
        return {"Ref": value}
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {f"Fn::{suffix}" if suffix != "Condition" else "Condition": value}


_Loader.add_multi_constructor("!", _intrinsic)


@cache
def load_template() -> dict[str, Any]:
    return yaml.load((ROOT / "template.yaml").read_text(), Loader=_Loader)  # type: ignore[no-any-return]


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The resources of one type, by logical id."""
    found = load_template()["Resources"]
    return {name: resource for name, resource in found.items() if resource["Type"] == kind}


def functions() -> dict[str, dict[str, Any]]:
    """Properties of every function, by logical id."""
    return {name: function["Properties"] for name, function in resources("AWS::Serverless::Function").items()}


def directory_of(function: dict[str, Any]) -> str:
    """`functions/collect_targets/` is `collect_targets`."""
    return str(function["CodeUri"]).strip("/").rsplit("/", 1)[-1]


def queue_functions() -> dict[str, tuple[str, dict[str, Any]]]:
    """Which function takes which queue: queue's logical id → (function's directory, mapping)."""
    return {
        event["Properties"]["Queue"]["Fn::GetAtt"][0]: (directory_of(function), event["Properties"])
        for function in functions().values()
        for event in function.get("Events", {}).values()
        if event["Type"] == "SQS"
    }
