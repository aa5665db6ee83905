"""Runs the stack of template.yaml on moto in this process: no network, no Docker, and a clock that tests move."""

from __future__ import annotations

import base64
import importlib.util
import json as jsonlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch as replace
from urllib.parse import unquote, urlencode

from moto import mock_aws

from tests.support.clock import Clock
from tests.support.moto import aws_limits
from tests.support.moto import dynamodb as moto_dynamodb
from tests.support.moto import machines as moto_machines
from tests.support.moto import resources as moto_resources
from tests.support.moto import roles as moto_roles
from tests.support.moto.replay import Recording
from tests.support.moto.resources import Names
from tests.support.moto.roles import Roles
from tests.support.patience import idle_clock
from tests.support.template import ROOT, queue_functions, timeout_of
from tidegate import app as composition
from tidegate.aws import clients
from tidegate.http.guard import origin_of_text
from tidegate.projects.keys import hash_key

ADMIN_KEY = "tg_admin_0123456789abcdef"
SUBMIT_ROUTES = {("POST", "/v1/downloads"), ("POST", "/v1/downloads/batch")}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return jsonlib.loads(self.body)


@dataclass(frozen=True)
class Project:
    id: str
    key: str
    cloud: MotoCloud = field(repr=False)

    def agent_key(self, agent_id: str) -> str:
        return self.cloud.make_key(self.id, ["agent"], agent_id)


@cache
def _shared_client(service: str, endpoint_url: str | None, _environment: tuple[tuple[str, str], ...]) -> Any:
    return new_client(service, endpoint_url)


new_client = clients.client


def shared_client(service: str, endpoint_url: str | None = None) -> Any:
    """Returns one client for all clouds of this process: creating one takes longer than most tests use it."""
    aws = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _shared_client(service, endpoint_url, aws)


@cache
def load_function(name: str) -> ModuleType:
    path = ROOT / "functions" / name / "app.py"
    spec = importlib.util.spec_from_file_location(f"functions_{name}", path)
    assert spec, f"there is no function {name}"
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lambda_context(name: str) -> Any:
    return SimpleNamespace(
        function_name=name,
        memory_limit_in_mb=512,
        invoked_function_arn=f"arn:aws:lambda:us-east-1:123456789012:function:{name}",
        aws_request_id=str(uuid.uuid4()),
        get_remaining_time_in_millis=lambda: timeout_of(name) * 1000,
    )


_SERVING = threading.RLock()
_NESTED_SECONDS = 2


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """A process serves one request at a time, as on Lambda: the resolver keeps the present one in its own state.

    A request that the present one waits for, as of a business that calls back, is served after a while all the same."""
    deadline = idle_clock() + _NESTED_SECONDS
    while not (ours := _SERVING.acquire(timeout=0.05)) and idle_clock() < deadline:
        pass
    try:
        yield
    finally:
        if ours:
            _SERVING.release()


_RECORDINGS: dict[bool, Recording[Names]] = {}
# Host limits are off because all servers of a test share one address. The key cache is off because the number of AWS
# calls of a scenario must not depend on its speed.
_STEADY = {"HOST_CALLS_PER_SECOND": "0", "HOST_CONNECTIONS": "0", "KEY_CACHE_SECONDS": "0"}


class MotoCloud:
    """The stack, for use as a context manager. With `machines_run`, executions run in threads, on the tests' clock."""

    admin_key = ADMIN_KEY

    def __init__(self, *, machines_run: bool = False, **env: str) -> None:
        self.clock = Clock()
        self.machines_run = machines_run
        # Seconds that functions have been frozen in this test so far.
        self.frozen_seconds = 0
        self._env = env
        self.serving: Callable[[], AbstractContextManager[None]] = _one_at_a_time
        # Called while a state machine waits: agents report, queues are delivered.
        self.while_waiting: list[Callable[[], object]] = []
        self._waits_may_begin = threading.Event()
        self._waits_may_begin.set()
        self._mock = mock_aws(
            config={"stepfunctions": {"execute_state_machine": machines_run}, "lambda": {"use_docker": False}}
        )

    def __enter__(self) -> MotoCloud:
        self._mock.start()
        self._undo_env = moto_resources.aws_environment()
        try:
            self.names = self._resources()
        except BaseException:
            self._mock.stop()
            raise
        environment = {**self.names.environment, **_STEADY, **self._env}
        self._undo_env = self._undo_env + moto_resources.set_environment(environment)
        self._undo_dynamodb = moto_dynamodb.patch()
        self._undo_limits = aws_limits.patch()
        self.roles = Roles(self.names)
        self._undo_roles = moto_roles.patch(self.roles)
        self._undo_machines = moto_machines.patch(
            self.clock, self._invoked_by_machine, self._waits_may_begin.wait, self._act_while_waiting
        )
        self._sharing = replace.object(clients, "client", shared_client)
        self._sharing.start()
        composition.install(composition.App(clock=self.clock))
        return self

    def _resources(self) -> Names:
        # moto has a separate backend for machines that run.
        if self.machines_run not in _RECORDINGS:
            _RECORDINGS[self.machines_run] = Recording(lambda: moto_resources.create(hash_key(ADMIN_KEY)))
            return _RECORDINGS[self.machines_run].result()
        return _RECORDINGS[self.machines_run].replay()

    def __exit__(self, *failure: object) -> None:
        composition.install(None)
        self._sharing.stop()
        self._undo_roles()
        self._undo_limits()
        self._undo_dynamodb()
        self._undo_machines()
        moto_resources.restore_environment(self._undo_env)
        self._mock.stop()
        assert failure[0] or not self.roles.refused, f"a role lacks: {self.roles.refused}"

    def _invoked_by_machine(self, name: str, event: Any) -> Any:
        answer = self.invoke(name, event)
        aws_limits.check_state(name, answer)
        return answer

    @contextmanager
    def windows_stay_open(self) -> Iterator[None]:
        """Holds back the waits of state machines, so that a slow test can still act within one window."""
        held_back = not self._waits_may_begin.is_set()
        self._waits_may_begin.clear()
        try:
            yield
        finally:
            if not held_back:
                self._waits_may_begin.set()

    def _act_while_waiting(self) -> None:
        for act in self.while_waiting:
            act()

    @property
    def app(self) -> composition.App:
        return composition.app()

    def client(self, service: str) -> Any:
        return moto_resources.client(service)

    # --- HTTP

    def http(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        key: str | None = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        body: str | None = None,
    ) -> Answer:
        """Sends a request as API Gateway does: to the authorizer, then to the function of its route.

        `path` is percent-encoded; an HTTP API passes it on decoded."""
        path, _, inline = path.partition("?")
        raw_query = "&".join(filter(None, [inline, urlencode(query or {}, doseq=True)]))
        sent = {"content-type": "application/json", **(headers or {})}
        if key:
            sent["authorization"] = f"Bearer {key}"
        event = self._http_event(method, path, raw_query, sent, jsonlib.dumps(json) if json is not None else body)
        described = self.invoke("authorizer", {**event, "type": "REQUEST"})
        event["requestContext"]["authorizer"] = {"lambda": described["context"]}
        began, frozen = self.clock(), self.frozen_seconds
        with self.serving():
            answer = self.invoke("submit" if (method, path) in SUBMIT_ROUTES else "api", event)
        # Not checked with running machines, which move the clock meanwhile. Frozen seconds do not count.
        took = (self.clock() - began).total_seconds() - (self.frozen_seconds - frozen)
        if not self.machines_run and took > aws_limits.API_SECONDS:
            return Answer(503, {"content-type": "application/json"}, b'{"message":"Service Unavailable"}')
        raw = answer.get("body") or ""
        content = base64.b64decode(raw) if answer.get("isBase64Encoded") else raw.encode()
        return Answer(answer["statusCode"], {k.lower(): v for k, v in answer.get("headers", {}).items()}, content)

    @staticmethod
    def _http_event(method: str, path: str, query: str, headers: dict[str, str], body: str | None) -> dict[str, Any]:
        from urllib.parse import parse_qs

        parsed = {name: ",".join(values) for name, values in parse_qs(query, keep_blank_values=True).items()}
        return {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": unquote(path),
            "rawQueryString": query,
            "headers": headers,
            "queryStringParameters": parsed,
            "requestContext": {
                "http": {"method": method, "path": unquote(path), "sourceIp": "127.0.0.1"},
                "requestId": str(uuid.uuid4()),
                "stage": "$default",
                "domainName": "api.test",
            },
            "body": body,
            "isBase64Encoded": False,
        }

    def make_key(self, project_id: str, scopes: list[str], agent_id: str | None = None) -> str:
        return self.app.projects.api_keys.add(project_id, scopes, agent_id).key

    def callback_secret(self, project_id: str) -> str:
        return self.app.projects.callback_secrets.newest(self.app.projects.projects.get(project_id))

    def origin_secret(self, project_id: str, url: str) -> str:
        project = self.app.projects.projects.get(project_id)
        return self.app.projects.callback_secrets.of_origin(project, origin_of_text(url))[0]

    def project(self, name: str | None = None, *, allow_private_urls: bool = True) -> Project:
        created = self.app.projects.projects.create(
            name or f"p-{uuid.uuid4().hex[:8]}", allow_private_urls=allow_private_urls
        )
        return Project(created.project_id, self.make_key(created.project_id, ["read", "write"]), self)

    # --- functions, queues, machines

    def invoke(self, name: str, event: Any) -> Any:
        """Calls a function as Lambda would: event and answer are converted to JSON and back."""
        aws_limits.check_event(name, event)
        with self.roles.running(name):
            result = load_function(name).handler(jsonlib.loads(jsonlib.dumps(event)), lambda_context(name))
        aws_limits.check_answer(name, result)
        return jsonlib.loads(jsonlib.dumps(result))

    def deliver(self, queue: str, *, limit: int = 10_000) -> int:
        """Delivers a queue (by logical id) to its function, as its event source mapping would.

        Returns how many messages were received.
        """
        function, mapping = queue_functions()[queue]
        taken = 0
        while taken < limit:
            batch = self._receive(queue, min(int(mapping.get("BatchSize", 10)), limit - taken))
            if not batch:
                break
            taken += len(batch)
            answer = self.invoke(function, {"Records": [_sqs_record(message) for message in batch]}) or {}
            failed = {entry["itemIdentifier"] for entry in answer.get("batchItemFailures", [])}
            self._settle(queue, batch, failed)
            if failed:
                break
        return taken

    def _receive(self, queue: str, size: int) -> list[Any]:
        batch: list[Any] = []
        while len(batch) < size:
            received = self.client("sqs").receive_message(
                QueueUrl=self.names.queues[queue],
                MaxNumberOfMessages=min(10, size - len(batch)),
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            if not received.get("Messages"):
                break
            batch += received["Messages"]
        return batch

    def _settle(self, queue: str, batch: list[Any], failed: set[str]) -> None:
        url = self.names.queues[queue]
        for message in batch:
            handle = message["ReceiptHandle"]
            if message["MessageId"] in failed:
                self.client("sqs").change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
            else:
                self.client("sqs").delete_message(QueueUrl=url, ReceiptHandle=handle)

    def run_machine(self, machine: str, data: Any, timeout: float = 60) -> dict[str, Any]:
        """Runs a state machine (by logical id) to its end. Needs `machines_run`."""
        return moto_machines.run(self.client("stepfunctions"), self.names.machines[machine], data, timeout)


def _sqs_record(message: Any) -> dict[str, Any]:
    attributes = {
        name: {"stringValue": value.get("StringValue"), "dataType": value["DataType"]}
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": {"ApproximateReceiveCount": "1", **message.get("Attributes", {})},
        "messageAttributes": attributes,
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue",
        "awsRegion": "us-east-1",
    }
