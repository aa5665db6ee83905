"""AWS clients, and the few calls to SQS, Step Functions and CloudWatch that the product makes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.common.ids import iso
from tidegate.common.token_bucket import TokenBucket
from tidegate.errors import Busy

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from botocore.session import Session
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient
    from mypy_boto3_stepfunctions.type_defs import DescribeExecutionOutputTypeDef

# --- clients
# AWS clients with time-outs and retries that suit a function of a few seconds.
#
# They are botocore's: boto3 would add its transfer manager for S3 to every cold start; only copies of exports use it.
# botocore is imported when the first client is used.

_COMMON: dict[str, Any] = {
    "connect_timeout": 3,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 5},
    "max_pool_connections": 32,
}
_OWN: dict[str, dict[str, Any]] = {
    # Presigned URLs need v4 signatures. Path style also works where a bucket has no host name of its own.
    "s3": {"signature_version": "s3v4", "s3": {"addressing_style": "path"}},
    # SES may have sent a mail although its answer was lost: botocore must not send it again.
    "sesv2": {"retries": {"mode": "standard", "total_max_attempts": 1}},
}


_making = threading.Lock()


def client(service: str, endpoint_url: str | None = None, region: str | None = None) -> Any:
    """Returns a new client with this module's time-outs and retries."""
    from botocore.config import Config

    config = Config(**(_COMMON | _OWN.get(service, {})))
    create: Any = _session().create_client
    return create(service, config=config, endpoint_url=endpoint_url, region_name=region)


class _LazyClient:
    """Creates its client at the first use, because creating a client adds 20 to 60 ms to a cold start."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        # Several threads may use a client at once, but not create one.
        with _making:
            made = self.__dict__.get("_made")
            if made is None:
                made = self.__dict__["_made"] = client(self._service)
        # Store it as an attribute of this object, so that the next use finds it without this method.
        found = self.__dict__[name] = getattr(made, name)
        return found


def lazy_client(service: str) -> Any:
    """Returns a client that is created when it is first used."""
    return _LazyClient(service)


@cache
def _session() -> Session:
    from botocore.session import get_session

    return get_session()


def credentials() -> ReadOnlyCredentials:
    """Returns the function's own credentials, for requests that are signed without a client."""
    from botocore.exceptions import NoCredentialsError

    found = _session().get_credentials()
    if found is None:
        raise NoCredentialsError
    return found.get_frozen_credentials()


def region() -> str:
    return str(_session().get_config_variable("region"))


_BATCH = 10
_TRIES = 4
LONGEST_DELAY = 900
_FIRST_PAUSE, _LONGEST_PAUSE = 3, 60

logger = Logger(service="tidegate", child=True)


@dataclass(frozen=True, slots=True)
class Message:
    body: Mapping[str, Any]
    group: str | None = None
    deduplication_id: str | None = None
    delay_seconds: int = 0

    def entry(self, index: int) -> dict[str, Any]:
        made: dict[str, Any] = {"Id": str(index), "MessageBody": json.dumps(self.body, separators=(",", ":"))}
        if self.group is not None:
            made |= {"MessageGroupId": self.group, "MessageDeduplicationId": self.deduplication_id}
        elif self.delay_seconds:
            made["DelaySeconds"] = min(self.delay_seconds, LONGEST_DELAY)
        return made


def _pause(record: Mapping[str, Any]) -> int:
    """Returns the seconds until a failed message is visible again. They double after each failure."""
    received = int(record.get("attributes", {}).get("ApproximateReceiveCount", 1))
    return min(_FIRST_PAUSE << min(max(0, received - 1), 10), _LONGEST_PAUSE)


class SqsQueue:
    """An SQS queue. Sends messages in batches, and sends a message again if SQS refuses it."""

    def __init__(self, client: SQSClient, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._url = url
        self._sleep = sleep

    def send(self, *messages: Message) -> None:
        """Sends the messages. Raises Busy if SQS refuses some of them at every try."""
        for start in range(0, len(messages), _BATCH):
            self._send_batch(messages[start : start + _BATCH])

    def retry_soon(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Makes failed messages visible again within a minute.

        Otherwise SQS hides them for longer, and their FIFO group, too. `records`: the records of Lambda's event. If SQS
        cannot be reached, the messages come back after their visibility time-out.
        """
        for start in range(0, len(records), _BATCH):
            entries: Any = [
                {"Id": str(index), "ReceiptHandle": record["receiptHandle"], "VisibilityTimeout": _pause(record)}
                for index, record in enumerate(records[start : start + _BATCH])
            ]
            try:
                self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
            except (ClientError, BotoCoreError):
                logger.exception("failed messages are retried only after their visibility time-out")
                return

    def size(self) -> int:
        """Returns SQS's approximate number of waiting messages."""
        wanted: Any = ["ApproximateNumberOfMessages"]
        answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=wanted)
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    def _send_batch(self, messages: Sequence[Message]) -> None:
        left: list[Any] = [message.entry(index) for index, message in enumerate(messages)]
        for attempt in range(_TRIES):
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=left)
            refused = {entry["Id"] for entry in answer.get("Failed", [])}
            left = [entry for entry in left if entry["Id"] in refused]
            if not left:
                return
            self._sleep(0.1 * 2**attempt)
        raise Busy(f"SQS refused {len(left)} of {len(messages)} messages: try again in a few seconds")


# DescribeExecution has the lowest quota of all calls here: for a whole account, 250 at once, then 10 a second (300 and
# 15 in the largest regions). After an outage, compensation asks about every request and Job that was running.
_DESCRIBES_A_SECOND, _DESCRIBES_SAVED_SECONDS = 8, 10


class Machines:
    """Step Functions: start, describe and stop executions."""

    def __init__(
        self,
        client: SFNClient,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._sleep = sleep
        self._describes = TokenBucket(_DESCRIBES_A_SECOND, monotonic(), burst_seconds=_DESCRIBES_SAVED_SECONDS)
        self._taking = threading.Lock()

    def start(self, machine_arn: str, name: str, data: Mapping[str, Any]) -> str:
        """Starts an execution and returns its ARN. Does nothing if an execution with this name was started before."""
        try:
            started = self._client.start_execution(stateMachineArn=machine_arn, name=name, input=json.dumps(data))
        except self._client.exceptions.ExecutionAlreadyExists:
            return execution_arn(machine_arn, name)
        return started["executionArn"]

    def status(self, machine_arn: str, name: str) -> str | None:
        """Returns RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED; None if there is no such execution."""
        found = self._describe(machine_arn, name)
        return found["status"] if found else None

    def latest(self, machine_arn: str, name: str) -> tuple[str, str | None]:
        """Returns (name, status) of the last execution in a chain that begins with `name`.

        An execution whose history gets too long starts a successor, and ends with the successor's name in its output.
        """
        while True:
            found = self._describe(machine_arn, name)
            following = _successor(found.get("output")) if found else None
            # Only an execution that has ended names its successor.
            if found is None or found["status"] != "SUCCEEDED" or following is None:
                return name, found["status"] if found else None
            name = following

    def _describe(self, machine_arn: str, name: str) -> DescribeExecutionOutputTypeDef | None:
        """Returns the execution; None if there is none. Waits if this process has asked too often."""
        while True:
            with self._taking:
                wait = self._describes.take(self._monotonic())
            if not wait:
                break
            self._sleep(wait)
        try:
            return self._client.describe_execution(executionArn=execution_arn(machine_arn, name))
        except self._client.exceptions.ExecutionDoesNotExist:
            return None

    def running(self, machine_arn: str, most: int) -> list[str]:
        """Returns the names of at most `most` running executions, whichever version or alias started them."""
        before, _, machine = machine_arn.partition(":stateMachine:")
        arn = f"{before}:stateMachine:{machine.partition(':')[0]}"
        listed = self._client.list_executions(stateMachineArn=arn, statusFilter="RUNNING", maxResults=most)
        return [execution["name"] for execution in listed["executions"]]

    def stop(self, machine_arn: str, name: str, cause: str) -> None:
        """Stops an execution. Does nothing if there is no such execution."""
        try:
            self._client.stop_execution(executionArn=execution_arn(machine_arn, name), cause=cause[:200])
        except self._client.exceptions.ExecutionDoesNotExist:
            return


def _successor(output: str | None) -> str | None:
    result = json.loads(output) if output else None
    following = result.get("successor") if isinstance(result, dict) else None
    return str(following["name"]) if isinstance(following, dict) and "name" in following else None


def execution_arn(machine_arn: str, name: str) -> str:
    """Returns the ARN of an execution.

    This ARN has no alias or version, even if one was used to start the execution.
    """
    before, _, machine = machine_arn.partition(":stateMachine:")
    return f"{before}:execution:{machine.partition(':')[0]}:{name}"


# --- alarms
# The stack's CloudWatch alarms and their states.


@dataclass(frozen=True, slots=True)
class Alarm:
    """A CloudWatch alarm. `state` is ok, alarm or insufficient_data."""

    name: str
    state: str
    description: str
    reason: str
    since: str | None


def alarm_state(client: Any, name: str, arn: str | None) -> tuple[str, str] | None:
    """Returns (state, reason) of a metric alarm or composite alarm; None if there is no such alarm.

    The state is OK, ALARM or INSUFFICIENT_DATA.
    """
    found = client.describe_alarms(AlarmNames=[name], AlarmTypes=["MetricAlarm", "CompositeAlarm"])
    for alarm in (*found.get("MetricAlarms", ()), *found.get("CompositeAlarms", ())):
        if alarm["AlarmName"] == name and arn in (None, alarm["AlarmArn"]):
            return alarm["StateValue"], alarm.get("StateReason", "")
    return None


def alarms(client: Any, stack_name: str) -> Iterator[Alarm]:
    """Yields every alarm of the stack. CloudFormation names an alarm `{stack}-{logical id}-{random}`.

    `Alarm.name` is the logical id without "Alarm" at its end.
    """
    prefix = f"{stack_name}-"
    for page in client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix):
        for alarm in page["MetricAlarms"]:
            # A logical id has no hyphen: this is an alarm of another stack, whose name begins with ours.
            if alarm["AlarmName"].removeprefix(prefix).count("-") > 1:
                continue
            since = alarm.get("StateUpdatedTimestamp")
            yield Alarm(
                name=alarm["AlarmName"].removeprefix(prefix).rsplit("-", 1)[0].removesuffix("Alarm"),
                state=alarm["StateValue"].lower(),
                description=alarm.get("AlarmDescription", ""),
                reason=alarm.get("StateReason", ""),
                since=iso(since) if since else None,
            )
