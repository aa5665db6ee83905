"""The queue on moto, with requests that do nothing until the test ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.compensation.poll import CompensationStore
from tidegate.queue.model import Channel, Request


@dataclass(frozen=True)
class TestQueue:
    __test__ = False
    cloud: MotoCloud
    project: Project

    def submit(self, **more: Any) -> Request:
        """Submits a `check` to `no_cookie`. It is not admitted before `admit` or a delivery."""
        kind = more.pop("type", "check")
        # Requests of equal priority are admitted by age, so no two have the same millisecond.
        self.cloud.clock.advance(0.002)
        return self.cloud.app.queue.submit(self.project.id, kind, payload=more.pop("payload", {}), **more)

    def admit(self) -> None:
        self.cloud.deliver("AdmissionQueue")

    def now(self, request: Request) -> Request:
        return self.cloud.app.queue.get(request.project_id, request.request_id)

    def statuses(self, *requests: Request) -> list[str]:
        return [self.now(request).status for request in requests]

    def finish(self, request: Request, **outcome: Any) -> Request:
        present = self.now(request)
        return self.cloud.app.queue.finish(present.project_id, present.request_id, present.attempt, **outcome)

    def capacity(self, **capacities: int) -> None:
        answer = self.cloud.http("POST", "/v1/queue/capacity", json=capacities, key=self.cloud.admin_key)
        assert answer.status == 200, answer.body
        self.admit()

    def channel(self, name: str = "no_cookie") -> Channel:
        channel = self.cloud.app.queue.channel_store.get(name)
        assert channel is not None
        return channel

    def act(self, request: Request, action: str, body: Any = None) -> Any:
        return self.cloud.http("POST", f"/v1/requests/{request.request_id}/{action}", json=body, key=self.project.key)

    def executions(self, machine: str = "IngestMachine") -> dict[str, str]:
        arn = self.cloud.names.machines[machine]
        listed = self.cloud.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]
        return {entry["name"]: entry["status"] for entry in listed}

    def compensate(self, seconds: float) -> None:
        """Moves the clock, then runs the handlers of all overdue records, as the compensation poll does."""
        self.cloud.clock.advance(seconds)
        app = self.cloud.app
        now = self.cloud.clock().timestamp()
        for item in CompensationStore(app.table).overdue(now, now - 30, now - 30, 20_000).found:
            record = app.table.get({"pk": item["pk"], "sk": item["sk"]}, consistent=True)
            if record:
                app.due_handlers[item["due_kind"]](record)
        self.admit()


def set_quotas(queue: TestQueue, **quotas: Any) -> None:
    """Sets quotas as `PATCH /v1/projects/{project_id}` does."""
    queue.cloud.app.table.write(update(keys.project(queue.project.id), {"quotas": quotas}))
