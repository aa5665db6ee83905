"""WebSocket clients without sockets: calls the functions as API Gateway and SNS do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.moto.aws_limits import is_too_large
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.notifications.websocket import Sent


class Outgoing:
    """A fake of API Gateway's API for connections."""

    def __init__(self) -> None:
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.gone: set[str] = set()
        self.unreachable: set[str] = set()
        self.closed: list[str] = []
        self.cannot_close: set[str] = set()

    def send(self, messages: Iterable[tuple[str, str]]) -> Sent:
        pairs = list(messages)
        for connection_id, text in pairs:
            if connection_id not in self.gone | self.unreachable and not is_too_large(text):
                self.sent.setdefault(connection_id, []).append(json.loads(text))
        addressed = {connection_id for connection_id, _ in pairs}
        return Sent(addressed & self.gone, addressed & self.unreachable)

    def close(self, connection_ids: Iterable[str]) -> set[str]:
        asked = set(connection_ids)
        self.closed += sorted(asked - self.cannot_close)
        return asked & self.cannot_close


@dataclass
class Line:
    """The cloud's WebSocket, and records that a test makes up."""

    cloud: MotoCloud
    outgoing: Outgoing = field(default_factory=Outgoing)
    records: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        notifications = self.cloud.app.notifications
        notifications.outgoing.send = self.outgoing.send  # type: ignore[method-assign]
        notifications.outgoing.close = self.outgoing.close  # type: ignore[method-assign]
        notifications.records._batched = {}
        notifications.records._lookups = {"": lambda project, record: self.records.get((project, record))}

    def ticket(self, project: Project) -> str:
        answer = self.cloud.http("POST", "/v1/ws-tickets", key=project.key)
        assert answer.status == 201, answer.body
        return str(answer.json()["ticket"])

    def _event(self, connection_id: str, kind: str, body: str = "", ticket: str | None = None) -> int:
        event = {
            "requestContext": {"connectionId": connection_id, "eventType": kind, "routeKey": "$default"},
            "queryStringParameters": {"ticket": ticket} if ticket else None,
            "body": body,
        }
        return int(self.cloud.invoke("websocket", event)["statusCode"])

    def connect(self, connection_id: str, ticket: str | None) -> int:
        return self._event(connection_id, "CONNECT", ticket=ticket)

    def joined(self, project: Project, connection_id: str = "c1") -> str:
        assert self.connect(connection_id, self.ticket(project)) == 200
        return connection_id

    def say(self, connection_id: str, **message: Any) -> list[dict[str, Any]]:
        return self.say_text(connection_id, json.dumps(message))

    def say_text(self, connection_id: str, text: str) -> list[dict[str, Any]]:
        """Sends the text and returns the messages that it was answered with."""
        before = len(self.heard(connection_id))
        assert self._event(connection_id, "MESSAGE", text) == 200
        return self.heard(connection_id)[before:]

    def leave(self, connection_id: str) -> None:
        self._event(connection_id, "DISCONNECT")

    def heard(self, connection_id: str) -> list[dict[str, Any]]:
        return self.outgoing.sent.get(connection_id, [])

    def record(self, project: Project, record_id: str, **fields: Any) -> None:
        self.records[project.id, record_id] = fields

    def push(self, project: Project, record_id: str, kind: str, **data: Any) -> None:
        notice = {"project_id": project.id, "record_id": record_id, "type": kind, "status": data["status"]}
        message = json.dumps({**notice, "message_id": "msg_1", "data": data})
        self.cloud.invoke("push_websocket", {"Records": [{"Sns": {"Message": message}}]})

    def items(self, kind: str) -> list[dict[str, Any]]:
        found = self.cloud.client("dynamodb").scan(TableName=self.cloud.names.refs["Table"])["Items"]
        return [item for item in found if f"#{kind}#" in item["pk"]["S"]]
