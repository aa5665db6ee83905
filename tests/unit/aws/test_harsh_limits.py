"""MotoCloud has the limits of API Gateway."""

from __future__ import annotations

import json

import pytest

from tests.support.moto.aws_limits import API_SECONDS, FRAME_BYTES, WEBSOCKET_BYTES, SocketClosed
from tests.support.moto.cloud import MotoCloud
from tests.support.template import timeout_of
from tidegate.notifications.websocket import Sent, WebSocketSender


def send_frame(cloud: MotoCloud, text: str) -> int:
    about = {"connectionId": "c1", "eventType": "MESSAGE", "routeKey": "$default"}
    return int(cloud.invoke("websocket", {"requestContext": about, "body": text})["statusCode"])


def test_frame_over_32_kb_ends_the_connection(cloud: MotoCloud) -> None:
    cloud.app.notifications.outgoing.send = lambda messages: Sent(set(), set())  # type: ignore[method-assign]

    assert send_frame(cloud, json.dumps("x" * (FRAME_BYTES - 2))) == 200
    with pytest.raises(SocketClosed, match="1009"):
        send_frame(cloud, json.dumps("x" * (FRAME_BYTES - 1)))


def test_message_over_128_kb_is_refused_with_413(cloud: MotoCloud) -> None:
    sender: WebSocketSender = cloud.app.notifications.outgoing

    assert sender._call_all("POST", [("c1", "x" * (WEBSOCKET_BYTES + 1))]) == [413]


def test_api_call_over_29_s_is_503(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke = cloud.invoke

    def slow(name: str, event: object) -> object:
        cloud.clock.advance(API_SECONDS + 1 if name == "api" else 0)
        return invoke(name, event)

    assert cloud.http("GET", "/healthz").status == 200
    monkeypatch.setattr(cloud, "invoke", slow)
    assert cloud.http("GET", "/healthz").status == 503


@pytest.mark.parametrize("function", ["api", "submit", "authorizer", "websocket"])
def test_functions_time_out_before_api_gateway(function: str) -> None:
    assert timeout_of(function) <= API_SECONDS
