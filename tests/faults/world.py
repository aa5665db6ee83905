"""The environment of functions that fail: callers that retry, queues that redeliver, the compensation poll."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from moto.utilities.arns import parse_arn

from tests.faults.injection import Calls, Died
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tests.support.patience import idle_clock
from tests.support.template import queue_functions
from tidegate.queue.retention import MARKER
from tidegate.settings import Settings

_TICKS = "CompensationQueue"
_PATIENCE_SECONDS = 90
# A run that has created nothing holds the key for five seconds, and one that took it over for ten.
_LONGEST_HELD = 20
_CREATES = re.compile(
    r"/v1/(downloads(/batch)?|files|task|subscriptions|biz|batches|(export|batch)-schedules|.*/(start|redrive)|enrolments.*)"
)


class World:
    def __init__(self, cloud: MotoCloud, calls: Calls, projects: list[Project] | None = None) -> None:
        self.cloud = cloud
        self._projects = projects if projects is not None else []
        self.calls = calls
        self._busy = False
        # Queues whose messages are delayed for a while.
        self.held: set[str] = set()
        self._notified: set[str] = set()
        self.repeated = 0
        self._subscriber_url = self._subscribe()
        cloud.while_waiting.append(self.deliver_all)

    def _subscribe(self) -> str:
        """Subscribes a queue to the topic, to see which notices are sent. Returns its URL."""
        sqs, sns = self.cloud.client("sqs"), self.cloud.client("sns")
        url: str = sqs.create_queue(QueueName="subscriber")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        topic = self.cloud.names.refs["NotificationsTopic"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
        return url

    def notified(self) -> set[str]:
        """The ids of all records about which a notice was sent so far."""
        sqs = self.cloud.client("sqs")
        while found := sqs.receive_message(QueueUrl=self._subscriber_url, MaxNumberOfMessages=10).get("Messages"):
            self._notified |= {str(json.loads(message["Body"])["record_id"]) for message in found}
        return self._notified

    def new_project(self) -> Project:
        """Created by the test itself, so no fault is injected."""
        with self.calls.without_faults():
            project = self.cloud.project()
        self._projects.append(project)
        return project

    def put_object(self, key: str, content: bytes) -> None:
        self.cloud.client("s3").put_object(Bucket=self.cloud.names.refs["FilesBucket"], Key=key, Body=content)

    def objects(self) -> list[str]:
        found = self.cloud.client("s3").list_objects_v2(Bucket=self.cloud.names.refs["FilesBucket"])
        return [entry["Key"] for entry in found.get("Contents", []) if entry["Key"] != MARKER]

    def read(self, key: str) -> bytes:
        found = self.cloud.client("s3").get_object(Bucket=self.cloud.names.refs["FilesBucket"], Key=key)
        return bytes(found["Body"].read())

    def uploads(self) -> list[str]:
        """Keys of unfinished multipart uploads."""
        found = self.cloud.client("s3").list_multipart_uploads(Bucket=self.cloud.names.refs["FilesBucket"])
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def idle_channels(self) -> bool:
        """Whether no channel counts a running request."""
        with self.calls.without_faults():
            return all(channel.running == 0 for channel in self.cloud.app.queue.channel_store.all())

    def next_day(self) -> None:
        """Runs the nightly clean-up, which deletes what killed functions left in the bucket."""
        self.cloud.clock.advance(26 * 3600)
        with self.calls.without_faults():
            self.cloud.invoke("clean_up", {"source": "aws.events"})

    def shown(self, path: str, project: Project) -> dict[str, Any]:
        """A record as its route shows it, read without faults."""
        with self.calls.without_faults():
            found: dict[str, Any] = self.cloud.http("GET", path, key=project.key).json()
        return found

    def ask(self, method: str, path: str, *, key: str, json: Any = None, tries: int = 4) -> Answer:
        """Acts as a caller that retries after a 5xx or no answer, with the same Idempotency-Key.

        What only such a route creates is there once, so its repeats do not count as `repeated`."""
        headers = {"idempotency-key": uuid.uuid4().hex} if method == "POST" else {}
        creates = method == "POST" and _CREATES.fullmatch(path) is not None
        waits = 0
        while tries > 0:
            answer: Answer | None
            try:
                answer = self.cloud.http(method, path, key=key, json=json, headers=headers)
            except (Died, ClientError, BotoCoreError):
                answer = None
            # Until another run may take the key over from one that has created nothing.
            waiting = answer is not None and b"idempotency_in_progress" in answer.body and waits < _LONGEST_HELD
            if answer and b"already_created" in answer.body and answer.status == 409:
                # It had a secret that nobody has seen: as the answer says, another key creates another one.
                headers = {"idempotency-key": uuid.uuid4().hex}
            elif answer and answer.status < 500 and not waiting:
                return answer
            waits, tries = (waits + 1, tries) if waiting else (waits, tries - 1)
            self.repeated += not creates
            self.cloud.clock.advance(1)
        raise AssertionError(f"{method} {path} was never answered")

    def try_ask(
        self, method: str, path: str, *, key: str, json: Any = None, headers: dict[str, str] | None = None
    ) -> Answer | None:
        """Sends one request, for callers such as agents that send another later anyway."""
        try:
            return self.cloud.http(method, path, key=key, json=json, headers=headers)
        except (Died, ClientError, BotoCoreError):
            return None

    def deliver_all(self) -> None:
        """Delivers every queue once. The message of a killed function comes again after its visibility time-out."""
        if self._busy:
            return
        self._busy = True
        try:
            for queue in queue_functions():
                if queue != _TICKS and queue not in self.held:
                    self.deliver(queue)
        finally:
            self._busy = False

    def deliver(self, queue: str) -> None:
        try:
            self.cloud.deliver(queue, limit=1000)
        except Died:
            return
        except Exception as error:
            if self.calls.injected is None:
                raise AssertionError(f"the function of {queue} failed without a fault: {error!r}") from error

    def compensate(self) -> None:
        """Runs the schedule of every minute, then all due ticks: an outdated one may come before the current one."""
        for event in ({"source": "aws.events"}, None):
            try:
                if event:
                    self.cloud.invoke("compensate", event)
                else:
                    self.cloud.deliver(_TICKS, limit=5)
            except Died:
                return
            except Exception:
                if self.calls.injected is None:
                    raise
                return

    def wait_for_machines(self, seconds: float = _PATIENCE_SECONDS, *, strict: bool = True) -> None:
        """Waits until no execution runs. Reads moto's state directly, because API calls would take too long."""
        deadline = idle_clock() + seconds
        for machine in self.cloud.names.machines.values():
            while _runs(machine):
                if idle_clock() > deadline and not strict:
                    return
                if idle_clock() > deadline:
                    raise AssertionError(f"an execution of {machine} does not end")
                time.sleep(0.01)

    def settle(self, done: Callable[[], bool], rounds: int = 40) -> None:
        """Delivers messages, polls and moves the clock until `done`. AssertionError after `rounds`."""
        for _ in range(rounds):
            self.deliver_all()
            self.wait_for_machines()
            if done() and not self.calls.resume():
                return
            self.cloud.clock.advance(Settings().compensation_overdue_seconds + 10)
            self.compensate()
        raise AssertionError(f"not done after {rounds} rounds; {self.calls.injected}; {self._left()}")

    def _left(self) -> str:
        table = self.cloud.client("dynamodb").scan(TableName=self.cloud.names.refs["Table"])["Items"]
        return json.dumps([item for item in table if "due_at" in item], default=str)[:2000]


def _runs(machine: str) -> bool:
    arn = parse_arn(machine)
    backend = stepfunctions_parser_backends[arn.account][arn.region]
    return any(execution.status == "RUNNING" for execution in list(backend.describe_state_machine(machine).executions))
