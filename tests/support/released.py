"""The permissions of the last release, as a file: `python -m tests.support.released` writes it, at each release."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from local import template

FILE = Path(__file__).parent.parent / "unit" / "template" / "released_permissions.json"


class Permission(NamedTuple):
    role: str
    action: str
    resource: str


def permissions(resources: Mapping[str, Any]) -> set[Permission]:
    """What each role may do, also with every option on."""
    shared = {
        name: each["Properties"]["PolicyDocument"]
        for name, each in resources.items()
        if each["Type"] == "AWS::IAM::ManagedPolicy"
    }
    found: set[Permission] = set()
    for name, each in resources.items():
        if each["Type"] == "AWS::IAM::Role":
            own = [policy["PolicyDocument"] for policy in each["Properties"].get("Policies", [])]
            named = [_chosen(arn) for arn in each["Properties"].get("ManagedPolicyArns", [])]
            documents = own + [
                shared[arn["Ref"]] for arn in named if isinstance(arn, dict) and arn.get("Ref") in shared
            ]
            found |= {Permission(name, *granted) for document in documents for granted in _granted(document)}
    return found


def _granted(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for statement in map(_chosen, document["Statement"]):
        if statement["Effect"] == "Allow":
            for action in _listed(statement["Action"]):
                for resource in _listed(statement["Resource"]):
                    yield action, _text(resource)


def _chosen(value: Any) -> Any:
    return value["Fn::If"][1] if isinstance(value, dict) and "Fn::If" in value else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(resource: Any) -> str:
    """An ARN as one text. The table and the bucket in use have the names that they had before there were others."""
    if isinstance(resource, dict):
        ((function, argument),) = resource.items()
        if function == "Fn::Sub":
            resource = argument if isinstance(argument, str) else argument[0]
        else:
            resource = "${" + (argument if function == "Ref" else ".".join(argument)) + "}"
    return str(resource).replace("TableInUseArn.Value", "Table.Arn").replace("BucketInUseArn.Value", "FilesBucket.Arn")


def covers(granted: Iterable[Permission], wanted: Permission) -> bool:
    return any(
        (each.role, each.action) == (wanted.role, wanted.action) and fnmatchcase(wanted.resource, _pattern(each))
        for each in granted
    )


def _pattern(permission: Permission) -> str:
    return permission.resource.replace("[", "[[]").replace("?", "[?]")


def read() -> tuple[str, set[Permission]]:
    stored = json.loads(FILE.read_text())
    roles = stored["roles"]
    return stored["release"], {
        Permission(role, action, resource)
        for role, resources in roles.items()
        for resource, actions in resources.items()
        for action in actions
    }


def write(release: str, found: Iterable[Permission]) -> None:
    roles: dict[str, dict[str, list[str]]] = {}
    for permission in sorted(found):
        roles.setdefault(permission.role, {}).setdefault(permission.resource, []).append(permission.action)
    lines = [f"  {json.dumps(role)}: {json.dumps(resources)}" for role, resources in sorted(roles.items())]
    FILE.write_text(f'{{"release": {json.dumps(release)}, "roles": {{\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    write(sys.argv[1], permissions(template.transformed()["Resources"]))
