"""Refuses calls that a function's role in template.yaml does not allow, in every test that runs on a MotoCloud.

MiniStack refuses them too, but only the calls that the end-to-end tests make."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from typing import Any
from unittest.mock import patch as replace

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from tests.support.moto import resources as moto_resources
from tests.support.moto.resources import Names
from tests.support.template import directory_of, functions, statements

# Operations whose action has another name.
_S3 = {
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
}


@cache
def _granted(directory: str) -> list[tuple[set[str], list[Any]]]:
    """The actions and resources of each statement of the function's role."""
    (name,) = (name for name, function in functions().items() if directory_of(function) == directory)
    plain = [statement for statement in statements(name) if "Fn::If" not in statement]
    return [(set(_listed(one["Action"])), _listed(one["Resource"])) for one in plain]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Roles:
    """Knows which function runs, and which of its calls were refused."""

    def __init__(self, names: Names) -> None:
        stored = {"TableInUseArn": f"arn:aws:dynamodb:::table/{names.refs['Table']}"}
        stored["BucketInUseArn"] = "arn:aws:s3:::files"
        self._names = dataclasses.replace(names, arns={**names.arns, **stored})
        self._queues = {url: names.arns[queue] for queue, url in names.queues.items()}
        self._table, self._bucket = names.refs["Table"], names.refs["FilesBucket"]
        self._patterns: dict[tuple[str, str], list[str]] = {}
        self._own = threading.local()
        self.refused: list[str] = []

    @contextmanager
    def running(self, directory: str | None) -> Iterator[None]:
        before, self._own.function = self._caller(), directory
        try:
            yield
        finally:
            self._own.function = before

    def carried(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, as one of the function that runs now, in whatever thread it is made."""
        directory = self._caller()

        def run(*values: Any, **named: Any) -> Any:
            with self.running(directory):
                return call(*values, **named)

        return run

    def check(self, service: str, operation: str, arguments: Mapping[str, Any]) -> None:
        directory = self._caller()
        if directory is None:
            return
        for action, arn in self._needs(service, operation, arguments):
            if not self._allows(directory, action, arn):
                self.refused.append(f"{directory}: {action} on {arn}")
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": self.refused[-1]}}, operation)

    def _caller(self) -> str | None:
        """The function that runs in this thread; None if the test itself calls."""
        found: str | None = getattr(self._own, "function", None)
        return found

    def _allows(self, directory: str, action: str, arn: str) -> bool:
        if (directory, action) not in self._patterns:
            granted = [resources for actions, resources in _granted(directory) if action in actions]
            self._patterns[directory, action] = [self._names.resolve(one) for resources in granted for one in resources]
        return any(fnmatchcase(arn, pattern) for pattern in self._patterns[directory, action])

    def _needs(self, service: str, operation: str, arguments: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """The actions that a call needs, each with its resource. None for services and resources of others."""
        if service == "dynamodb":
            yield from self._table_needs(operation, arguments)
        elif service == "s3":
            yield from self._bucket_needs(operation, arguments)
        elif service == "sqs" and arguments.get("QueueUrl") in self._queues:
            yield f"sqs:{operation.removesuffix('Batch')}", self._queues[arguments["QueueUrl"]]
        elif service == "sns" and "TopicArn" in arguments:
            yield f"sns:{operation.removesuffix('Batch')}", arguments["TopicArn"]
        elif service == "stepfunctions" and operation == "StartExecution":
            yield "states:StartExecution", arguments["stateMachineArn"]

    def _table_needs(self, operation: str, arguments: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        arn = self._names.arns["TableInUseArn"]
        if operation == "TransactWriteItems":
            parts = [next(iter(entry.items())) for entry in arguments["TransactItems"]]
            yield from {(f"dynamodb:{kind}Item", arn) for kind, part in parts if self._is_own(part)}
        elif operation in ("BatchGetItem", "BatchWriteItem"):
            yield from [(f"dynamodb:{operation}", arn)] if self._table in arguments["RequestItems"] else []
        elif self._is_own(arguments):
            index = arguments.get("IndexName")
            yield f"dynamodb:{operation}", f"{arn}/index/{index}" if index else arn

    def _is_own(self, part: Mapping[str, Any]) -> bool:
        return part.get("TableName") == self._table

    def _bucket_needs(self, operation: str, arguments: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        bucket, arn = arguments.get("Bucket"), self._names.arns["BucketInUseArn"]
        source = arguments.get("CopySource")
        if source and source["Bucket"] == self._bucket:
            yield "s3:GetObject", f"{arn}/{source['Key']}"
        if bucket != self._bucket:
            return
        action = "PutObject" if "Copy" in operation else _S3.get(operation, operation)
        objects = [arguments["Key"]] if "Key" in arguments else []
        objects += [entry["Key"] for entry in arguments.get("Delete", {}).get("Objects", ())]
        for key in objects:
            yield f"s3:{action}", f"{arn}/{key}"
        if not objects:
            yield f"s3:{action}", arn


def patch(roles: Roles) -> Callable[[], None]:
    """Checks the calls of all boto3 clients. Returns the function that undoes it."""
    make = BaseClient._make_api_call  # type: ignore[attr-defined]

    def checked(client: Any, operation: str, arguments: Any) -> Any:
        # A test may act in the middle of a function.
        if not moto_resources.is_of_tests(client):
            roles.check(client.meta.service_model.service_name, operation, arguments)
        return make(client, operation, arguments)

    submit = ThreadPoolExecutor.submit

    def submitted(pool: Any, call: Any, /, *values: Any, **named: Any) -> Any:
        return submit(pool, roles.carried(call), *values, **named)

    patches: list[Any] = [
        replace.object(BaseClient, "_make_api_call", checked),
        replace.object(ThreadPoolExecutor, "submit", submitted),
    ]
    for each in patches:
        each.start()

    def undo() -> None:
        for each in patches:
            each.stop()

    return undo
