"""Creates a cloud's resources once with AWS calls; for each later cloud it repeats the calls of moto's backends only.

Checking, serializing and parsing the AWS calls took two thirds of the time of a small test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Generic, NamedTuple, TypeVar
from unittest.mock import patch as replace

from moto.dynamodb.models import DynamoDBBackend, dynamodb_backends
from moto.s3.models import S3Backend, s3_backends
from moto.sns.models import SNSBackend, sns_backends
from moto.sqs.models import SQSBackend, sqs_backends
from moto.stepfunctions.models import StepFunctionBackend, stepfunctions_backends
from moto.stepfunctions.parser.models import StepFunctionsParserBackend, stepfunctions_parser_backends

_BACKENDS: dict[type, tuple[Any, tuple[str, ...]]] = {
    DynamoDBBackend: (dynamodb_backends, ("create_table",)),
    S3Backend: (s3_backends, ("create_bucket",)),
    SQSBackend: (sqs_backends, ("create_queue",)),
    SNSBackend: (sns_backends, ("create_topic", "subscribe", "set_subscription_attributes")),
    StepFunctionBackend: (stepfunctions_backends, ("create_state_machine",)),
    StepFunctionsParserBackend: (stepfunctions_parser_backends, ("create_state_machine",)),
}


T = TypeVar("T")


class _Step(NamedTuple):
    kind: type
    account: str
    region: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arn: str


class Recording(Generic[T]):
    """The backend calls that `make` caused, and its result."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._steps: list[_Step] = []
        self._inside = False
        with ExitStack() as patches:
            for kind, (_, methods) in _BACKENDS.items():
                for method in methods:
                    patches.enter_context(replace.object(kind, method, self._recorded(kind, method)))
            self._result = make()

    def _recorded(self, kind: type, method: str) -> Any:
        call = getattr(kind, method)

        def recorded(backend: Any, *args: Any, **kwargs: Any) -> Any:
            # A method may call that of its base class.
            if self._inside or not _is_exactly(backend, kind):
                return call(backend, *args, **kwargs)
            where, given = (backend.account_id, backend.region_name), copy.deepcopy((args, kwargs))
            self._inside = True
            try:
                resource = call(backend, *args, **kwargs)
            finally:
                self._inside = False
            arn = str(getattr(resource, "arn", ""))
            self._steps.append(_Step(kind, *where, method, *given, arn))
            return resource

        return recorded

    def result(self) -> T:
        return copy.deepcopy(self._result)

    def replay(self) -> T:
        """Repeats the backend calls. Returns a copy of the result of `make`."""
        # moto gives subscriptions random names.
        renamed: dict[str, str] = {}
        for step in self._steps:
            backend = _BACKENDS[step.kind][0][step.account][step.region]
            args = [_for_replay(argument, renamed) for argument in step.args]
            kwargs = {name: _for_replay(argument, renamed) for name, argument in step.kwargs.items()}
            resource = getattr(backend, step.method)(*args, **kwargs)
            if step.arn:
                renamed[step.arn] = str(resource.arn)
        return self.result()


def _for_replay(argument: Any, renamed: dict[str, str]) -> Any:
    """Returns the argument for one replay: a copy, or the new name of a renamed resource."""
    return renamed.get(argument, argument) if isinstance(argument, str) else copy.deepcopy(argument)


def _is_exactly(backend: Any, kind: type) -> bool:
    return type(backend) is kind
