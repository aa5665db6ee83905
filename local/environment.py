"""Computes the size of each function's environment variables, of which Lambda allows 4 KB."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from local import template

LAMBDA_LIMIT = 4096
# Stand-ins for the suffix that CloudFormation appends to names, and for the ids of resources.
_SUFFIX, _ID = "-ABCDEFGHIJKL", "a1b2c3d4e5"
_RELEASE = "0123456789ab-20260101T000000Z-abcd"


class Names:
    """Placeholders for names that exist only after the deployment. Each is at least as long as the real name."""

    def __init__(self, stack: str, region: str, parameters: Mapping[str, str]) -> None:
        self._stack, self._region, self._parameters = stack, region, parameters

    def value(self, value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        ((function, argument),) = value.items()
        if function == "Ref":
            return self._name(argument)
        if function == "Fn::If":
            return max((self.value(branch) for branch in argument[1:]), key=len)
        if function == "Fn::GetAtt" and argument[1] == "Value":
            return self._name(argument[0])
        text = argument if function == "Fn::Sub" else "https://${Id}.execute-api.${AWS::Region}.amazonaws.com.cn"
        return re.sub(r"\$\{([\w:.]+)\}", lambda found: self._name(found[1], short=True), text)

    def _name(self, name: str, *, short: bool = False) -> str:
        known = {
            "AWS::StackName": self._stack,
            "AWS::Region": self._region,
            "AWS::URLSuffix": "amazonaws.com.cn",
            "AWS::NoValue": "",
            **self._parameters,
        }
        if name in known:
            return known[name]
        if short:
            return _ID
        full_name = f"{self._stack}-{name.removesuffix('Aliaslive')}{_SUFFIX}"
        if name.endswith(("Queue", "DeadLetters")):
            return f"https://sqs.{self._region}.amazonaws.com.cn/123456789012/{full_name}"
        if name in ("TableInUse", "BucketInUse"):
            return self._parameters.get(f"Existing{name.removesuffix('InUse')}") or full_name
        return f"arn:aws-us-gov:states:{self._region}:123456789012:stateMachine:{full_name}:live"


@cache
def _template() -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Returns (default of each parameter, environment variables of each function by logical id)."""
    whole = template.expanded()
    common = whole["Globals"]["Function"]["Environment"]["Variables"] | {"RELEASE": _RELEASE}
    return (
        {name: str(parameter.get("Default", "x" * 64)) for name, parameter in whole["Parameters"].items()},
        {
            name: {**common, **resource["Properties"].get("Environment", {}).get("Variables", {})}
            for name, resource in whole["Resources"].items()
            if resource["Type"] == "AWS::Serverless::Function"
        },
    )


def sizes(stack: str, region: str, wanted: Mapping[str, str]) -> dict[str, int]:
    """Returns the bytes of each function's variables (names and values), by logical id."""
    defaults, functions = _template()
    names = Names(stack, region, {**defaults, **wanted})
    return {
        name: sum(len(f"{key}{names.value(value)}".encode()) for key, value in variables.items())
        for name, variables in functions.items()
    }
