"""Lets moto's Step Functions run our handlers; a wait moves the tests' clock and takes no real time."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any
from unittest.mock import patch as replace

from moto.awslambda_simple.models import LambdaSimpleBackend
from moto.sqs import models as sqs_models
from moto.stepfunctions.parser.asl.component.common.retry import retrier_decl
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
    StateTaskServiceSfn,
)
from moto.stepfunctions.parser.asl.component.state.wait.wait_function import timestamp, wait_function

from tests.support.clock import Clock
from tests.support.patience import idle_clock
from tests.support.template import directory_of, functions

_ENDED = ("SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED")


def patch(
    clock: Clock,
    invoke: Callable[[str, Any], Any],
    before_waiting: Callable[[], object],
    while_waiting: Callable[[], None],
) -> Callable[[], None]:
    """Makes waits, retries and queue delays use `clock`. Returns the function that undoes it.

    `before_waiting` and `while_waiting` are called for each wait.
    """
    directories = {name: directory_of(function) for name, function in functions().items()}

    def call(_: Any, function_name: str, qualifier: Any, body: Any, headers: Any, response_headers: Any) -> bytes:
        name = directories[function_name.rsplit(":", 1)[-1]]
        try:
            return json.dumps(invoke(name, json.loads(body or "{}"))).encode()
        except BaseException as error:
            response_headers["x-amz-function-error"] = "Unhandled"
            # A killed process reports no exception, so Lambda reports a general error.
            kind = type(error).__name__ if isinstance(error, Exception) else getattr(error, "seen_as", "Lambda.Unknown")
            return json.dumps({"errorType": kind, "errorMessage": str(error)}).encode()

    def wait(_: Any, env: Any, wait_seconds: float) -> None:
        before_waiting()
        clock.advance(max(0, wait_seconds))
        env.program_state_event.wait(0.005)
        while_waiting()

    def seconds_until(self: Any, env: Any) -> float:
        self.string.eval(env=env)
        moment = datetime.fromisoformat(env.stack.pop())
        return (moment - clock()).total_seconds()

    normalise = StateTaskServiceSfn._normalise_parameters

    def lower_first_letters(self: Any, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Spells parameters as boto3 does, for an execution that starts another. moto's interpreter leaves it out."""
        normalise(self, parameters, *args, **kwargs)
        for name in list(parameters):
            parameters[name[0].lower() + name[1:]] = parameters.pop(name)

    add_message, seen = sqs_models.Queue.add_message, dict[tuple[str, str, str], float]()

    def add_unless_seen(queue: Any, message: Any) -> None:
        """SQS drops a duplicate for five minutes after the first, also one that was received. moto then takes it."""
        if message.deduplication_id:
            name = (queue.name, message.group_id, message.deduplication_id)
            now = clock().timestamp()
            if now - seen.get(name, -math.inf) < sqs_models.DEDUPLICATION_TIME_IN_SECONDS:
                return
            seen[name] = now
        add_message(queue, message)

    class _Sleep:
        sleep = staticmethod(lambda seconds: clock.advance(seconds) and None)
        time = staticmethod(time.time)

    patches: list[Any] = [
        replace.object(LambdaSimpleBackend, "invoke", call),
        replace.object(wait_function.WaitFunction, "_wait_interval", wait),
        replace.object(timestamp.Timestamp, "_get_wait_seconds", seconds_until),
        replace.object(retrier_decl, "time", _Sleep),
        replace.object(StateTaskServiceSfn, "_normalise_parameters", lower_first_letters),
        replace.object(sqs_models.Queue, "add_message", add_unless_seen),
        replace.object(sqs_models, "unix_time", lambda: clock().timestamp()),
        replace.object(sqs_models, "unix_time_millis", lambda: clock().timestamp() * 1000),
    ]
    for each in patches:
        each.start()

    def undo() -> None:
        for each in patches:
            each.stop()

    return undo


def run(client: Any, machine: str, data: Any, timeout: float) -> dict[str, Any]:
    started = client.start_execution(stateMachineArn=machine, input=json.dumps(data), name=uuid.uuid4().hex)
    return wait_for(client, started["executionArn"], timeout)


def wait_for(client: Any, execution: str, timeout: float) -> dict[str, Any]:
    deadline = idle_clock() + timeout
    while idle_clock() < deadline:
        described: dict[str, Any] = client.describe_execution(executionArn=execution)
        if described["status"] in _ENDED:
            return described
        time.sleep(0.02)
    raise TimeoutError(f"{execution} did not end within {timeout} s")
