"""Versions of functions over several deployments, on a model of what Lambda and CloudFormation document.

- PublishVersion makes no version "if the function's configuration and code haven't changed since the last version"
  (docs.aws.amazon.com/lambda/latest/api/API_PublishVersion.html); CloudFormation then fails the stack.
- What counts is the configuration of the function; tags, reserved concurrency and recursion settings are none of it
  (docs.aws.amazon.com/lambda/latest/dg/configuration-versions.html).
- A rollback restores the function, but keeps the version: its DeletionPolicy is Retain
  (docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local import sam, template
from local.progress import Failure

NOT_VERSIONED = {"Tags", "ReservedConcurrentExecutions", "RecursiveLoop"}
RETRIED = "A version for this Lambda function exists"


class Stack:
    """A deployed stack: which versions it names, and what Lambda published last of each function."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.deployed: dict[str, str] = {}
        self.published: dict[str, str] = {}

    def deploy(self, resources: dict[str, Any], *, rolled_back: bool = False) -> set[str]:
        """Returns the functions of which a version was published."""
        made = set()
        versions, deployed = dict(self.versions), dict(self.deployed)
        layers = {
            name: each["Properties"] for name, each in resources.items() if each["Type"] == "AWS::Lambda::LayerVersion"
        }
        for name, each in resources.items():
            if each["Type"] == "AWS::Lambda::Function":
                deployed[name] = json.dumps([_versioned(each["Properties"]), layers], sort_keys=True)
        for name, each in resources.items():
            if each["Type"] == "AWS::Lambda::Version":
                function = each["Properties"]["FunctionName"]["Ref"]
                if versions.get(function) != name:
                    if self.published.get(function) == deployed[function]:
                        raise AssertionError(f"{function}: {RETRIED}")
                    self.published[function] = deployed[function]
                    versions[function] = name
                    made.add(function)
        if not rolled_back:
            self.versions, self.deployed = versions, deployed
        return made

    def runs_what_is_deployed(self) -> bool:
        return self.published == self.deployed


def _versioned(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in NOT_VERSIONED}


def resources(change: str, tmp_path: Path, deployment: str) -> dict[str, Any]:
    """The template as a deployment gives it to CloudFormation, with one thing changed."""
    changed = template.expanded()
    function = changed["Resources"]["WakeFunction"]["Properties"]
    if change == "tag":
        function["Tags"] = {"team": "downloads"}
    elif change == "reservation":
        function["ReservedConcurrentExecutions"] = 5
    elif change == "memory":
        function["MemorySize"] = 256
    elif change == "code":
        function["CodeUri"] = {"Bucket": "artifacts", "Key": "other"}
    elif change == "layer":
        changed["Resources"]["CoreLayer"]["Properties"]["ContentUri"] = {"Bucket": "artifacts", "Key": "other"}
    built = tmp_path / "template.yaml"
    built.write_text(json.dumps(changed))
    sam.stamp(built, {"CollectWindowSeconds": "9"} if change == "parameter" else {}, deployment)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(template, "expanded", lambda: json.loads(built.read_text()))
        found: dict[str, Any] = template.transformed()["Resources"]
    return found


CHANGES = ["nothing", "tag", "reservation", "memory", "code", "layer", "parameter"]


@pytest.mark.parametrize("change", CHANGES)
def test_deployment_publishes_every_function_whatever_has_changed(change: str, tmp_path: Path) -> None:
    stack = Stack()
    everything = stack.deploy(resources("nothing", tmp_path, "1"))

    assert stack.deploy(resources(change, tmp_path, "2")) == everything
    assert stack.runs_what_is_deployed()


@pytest.mark.parametrize("change", CHANGES)
def test_rolled_back_deployment_can_be_repeated(change: str, tmp_path: Path) -> None:
    stack = Stack()
    everything = stack.deploy(resources("nothing", tmp_path, "1"))
    stack.deploy(resources(change, tmp_path, "2"), rolled_back=True)

    assert stack.deploy(resources(change, tmp_path, "3")) == everything
    assert stack.runs_what_is_deployed()


def test_second_pass_of_a_first_deployment_publishes_nothing(tmp_path: Path) -> None:
    """`make deploy` protects the table of a new stack in a second pass, with the same release."""
    stack, built = Stack(), resources("nothing", tmp_path, "1")
    stack.deploy(built)
    assert stack.deploy(built) == set()


def test_release_names_its_content_and_its_deployment(tmp_path: Path) -> None:
    def release(deployment: str, code: str, **parameters: str) -> str:
        (tmp_path / "handler.py").write_text(code)
        built = tmp_path / "template.yaml"
        built.write_text("not-released")
        sam.stamp(built, parameters, deployment)
        return built.read_text()

    content, _, deployment = release("now", "a").partition("-")
    assert deployment == "now"
    assert release("later", "a") == f"{content}-later"
    assert not release("now", "b").startswith(content)
    assert not release("now", "a", LogLevel="WARN").startswith(content)
    assert sam.moment() != sam.moment()


def test_template_without_a_release_is_not_deployed(tmp_path: Path) -> None:
    built = tmp_path / "template.yaml"
    built.write_text("Resources: {}")
    with pytest.raises(Failure, match="does not name the release"):
        sam.stamp(built, {}, "now")
