"""Creates the resources of template.yaml on moto (tables, buckets, queues, topics, machines) and the environment."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import boto3

from tests.support.template import ROOT, functions, load_template, resources, variables

REGION = "us-east-1"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/test"


_OF_TESTS: set[int] = set()


@cache
def client(service: str) -> Any:
    """Returns a client for tests, shared by all clouds: creating one takes longer than most tests use it."""
    made = boto3.client(service, region_name=REGION)
    _OF_TESTS.add(id(made))
    return made


def is_of_tests(client: Any) -> bool:
    return id(client) in _OF_TESTS


@dataclass
class Names:
    """Physical names by logical id."""

    refs: dict[str, str] = field(default_factory=dict)
    arns: dict[str, str] = field(default_factory=dict)
    queues: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def resolve(self, value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        ((function, argument),) = value.items()
        if function == "Ref":
            return self.refs.get(argument, "")
        if function == "Fn::GetAtt":
            return self.arns.get(argument[0], "")
        if function == "Fn::Sub":
            text, extra = (argument, {}) if isinstance(argument, str) else argument
            known = {**self.refs, **{name: self.resolve(inner) for name, inner in extra.items()}}
            return re.sub(
                r"\$\{([^}]+)\}", lambda found: known.get(found[1], self.arns.get(found[1].split(".")[0], "")), text
            )
        if function == "Fn::If":
            return self.resolve(argument[2])
        return ""


def aws_environment() -> _Undo:
    return set_environment(
        {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "POWERTOOLS_LOG_LEVEL": os.environ.get("POWERTOOLS_LOG_LEVEL", "WARNING"),
            "POWERTOOLS_METRICS_NAMESPACE": "Tidegate",
        }
    )


class _Undo(dict[str, "str | None"]):
    def __add__(self, other: dict[str, str | None]) -> _Undo:
        return _Undo({**other, **self})


def set_environment(values: dict[str, str]) -> _Undo:
    before = _Undo({name: os.environ.get(name) for name in values})
    os.environ.update(values)
    return before


def restore_environment(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def create(admin_key_sha256: str) -> Names:
    names = Names()
    for name, parameter in load_template()["Parameters"].items():
        names.refs[name] = str(parameter.get("Default", ""))
    names.refs |= {
        "AdminKeySha256": admin_key_sha256,
        "AWS::Region": REGION,
        "AWS::AccountId": ACCOUNT,
        "AWS::Partition": "aws",
    }
    names.refs["AWS::StackName"] = "tidegate"
    _tables(names)
    _buckets(names)
    _queues(names)
    for name in resources("AWS::SNS::Topic"):
        names.refs[name] = names.arns[name] = client("sns").create_topic(Name=name)["TopicArn"]
    _subscriptions(names)
    for name in functions():
        names.refs[name] = name
        names.arns[name] = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
    for name, machine in resources("AWS::Serverless::StateMachine").items():
        # Machines refer to functions and functions to machines, so ARNs are set before the machines are created.
        names.refs[name] = names.arns[name] = names.machines[name] = (
            f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{names.resolve(machine['Properties'].get('Name', name))}"
        )
    _machines(names)
    names.environment = _environment(names)
    return names


def _tables(names: Names) -> None:
    for name, table in resources("AWS::DynamoDB::Table").items():
        used = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
        properties = {key: table["Properties"][key] for key in used}
        # Warm throughput costs money, and moto does not know it.
        properties["GlobalSecondaryIndexes"] = [
            {key: value for key, value in index.items() if key != "WarmThroughput"}
            for index in properties["GlobalSecondaryIndexes"]
        ]
        client("dynamodb").create_table(TableName=name, **properties)
        names.refs[name] = names.arns["TableInUse"] = name


def _buckets(names: Names) -> None:
    for name in resources("AWS::S3::Bucket"):
        bucket = f"tidegate-{name.lower()}"
        client("s3").create_bucket(Bucket=bucket)
        names.refs[name] = bucket
        names.arns[name] = names.arns["BucketInUseArn"] = f"arn:aws:s3:::{bucket}"
        names.arns["BucketInUse"] = bucket


def _queues(names: Names) -> None:
    for name, queue in resources("AWS::SQS::Queue").items():
        properties = queue.get("Properties", {})
        fifo = bool(properties.get("FifoQueue"))
        attributes = {"VisibilityTimeout": str(properties.get("VisibilityTimeout", 30))}
        if fifo:
            deduplicate = str(bool(properties.get("ContentBasedDeduplication"))).lower()
            attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": deduplicate}
        url = client("sqs").create_queue(QueueName=name + ".fifo" * fifo, Attributes=attributes)["QueueUrl"]
        names.refs[name] = names.queues[name] = url
        names.arns[name] = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}" + ".fifo" * fifo


def _subscriptions(names: Names) -> None:
    """Subscribes queues to topics. Subscribed functions are invoked by the tests themselves."""
    for subscription in resources("AWS::SNS::Subscription").values():
        properties = subscription["Properties"]
        if properties["Protocol"] == "sqs":
            attributes = {"RawMessageDelivery": str(properties.get("RawMessageDelivery", False)).lower()}
            if "FilterPolicy" in properties:
                attributes["FilterPolicy"] = json.dumps(properties["FilterPolicy"])
            client("sns").subscribe(
                TopicArn=names.resolve(properties["TopicArn"]),
                Protocol="sqs",
                Endpoint=names.resolve(properties["Endpoint"]),
                Attributes=attributes,
            )


def _machines(names: Names) -> None:
    for name, machine in resources("AWS::Serverless::StateMachine").items():
        properties = machine["Properties"]
        text = (ROOT / properties["DefinitionUri"]).read_text()
        for placeholder, value in properties.get("DefinitionSubstitutions", {}).items():
            text = text.replace("${" + placeholder + "}", names.resolve(value))
        json.loads(text)
        own_name = names.machines[name].rsplit(":", 1)[-1]
        client("stepfunctions").create_state_machine(name=own_name, definition=text, roleArn=ROLE)


def _environment(names: Names) -> dict[str, str]:
    """Returns the variables of all functions together, since they run in one process here."""
    declared = {name: value for function in functions().values() for name, value in variables(function).items()}
    resolved = {name: names.resolve(value) for name, value in declared.items()}
    return {name: value for name, value in resolved.items() if value and not name.startswith("POWERTOOLS")}
