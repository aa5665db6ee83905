"""Callbacks are verified: signature, time stamp and body."""

from __future__ import annotations

import base64
import hmac
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
import urllib3
from pytest_httpserver import HTTPServer
from standardwebhooks.webhooks import Webhook

from tests.support.http_servers import free_port
from tidegate.http.guard import read_url, sent_url
from tidegate_client.cli import main
from tidegate_client.cli.commands.webhook import Listener
from tidegate_client.cli.output import Output
from tidegate_client.webhooks import NotVerified, signed_url, verify

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, another secret!!").decode()
BODY = json.dumps({"type": "task.completed", "timestamp": "now", "data": {"name": "导出"}}).encode()


def signed(secret: str = SECRET, at: float | None = None, body: bytes = BODY) -> dict[str, str]:
    """Headers signed by the library of Standard Webhooks."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, timezone.utc)
    return {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(int(moment.timestamp())),
        "Webhook-Signature": Webhook(secret).sign("msg_1", moment, body.decode()),
    }


def test_signature_of_the_standard_library_is_verified() -> None:
    assert verify(SECRET, signed(), BODY) == "msg_1"


def test_during_a_rotation_either_signature_is_verified() -> None:
    headers = signed()
    headers["Webhook-Signature"] = f"{signed(OTHER)['Webhook-Signature']} {headers['Webhook-Signature']}"

    assert verify(SECRET, headers, BODY) == verify(OTHER, headers, BODY) == "msg_1"


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (signed, BODY + b" ", "no signature"),
        (lambda: signed(OTHER), BODY, "no signature"),
        (lambda: signed(at=time.time() - 600), BODY, "five minutes"),
        (lambda: signed(at=time.time() + 600), BODY, "five minutes"),
        (lambda: signed() | {"Webhook-Timestamp": "soon"}, BODY, "not a number"),
        (dict, BODY, "webhook-id is missing"),
        (lambda: signed() | {"Webhook-Signature": "v1a," + "A" * 44}, BODY, "no signature"),
        (lambda: signed() | {"Webhook-Timestamp": "9" * 400}, BODY, "five minutes"),
    ],
)
def test_wrong_signature_time_or_body_is_not_verified(
    headers: Callable[[], dict[str, str]], body: bytes, reason: str
) -> None:
    """Signed when the test runs, which may be minutes after it was collected."""
    with pytest.raises(NotVerified, match=reason):
        verify(SECRET, headers(), body)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_ключ", "whsec_!"])
def test_empty_or_malformed_secret_verifies_nothing(secret: str) -> None:
    at = str(int(time.time()))
    forged = base64.b64encode(hmac.digest(b"", f"msg_1.{at}.".encode() + BODY, "sha256")).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": at, "webhook-signature": f"v1,{forged}"}

    with pytest.raises(NotVerified, match="secret"):
        verify(secret, headers, BODY)


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example/orders?page=0&page_size=100&_task_id=req-1",
        "https://SHOP.example:443/orders?page=0",
        "http://127.0.0.1:8001/a%20b/%e4%b9%99?q=%2F&q=x+y",
        "http://[::1]:8001/?cursor=a%3D%3D",
        "https://shop.example?page=0",
        "https://shop.example",
        "https://shop.example/new?",
    ],
)
def test_url_that_is_signed_is_the_same_for_sender_and_receiver(url: str) -> None:
    sent = sent_url(read_url(url))
    raw = sent.split("/", 3)[3]
    origin = url.partition("?")[0].rstrip("/") if url.count("/") == 2 else "/".join(url.split("/")[:3])
    assert signed_url(f"{origin}/{raw}") == sent


def request_without_body(secret: str, content: str) -> dict[str, str]:
    return signed(secret, body=content.encode())


def test_request_without_a_body_is_verified_by_its_url() -> None:
    url = "https://shop.example/orders?page=0"
    headers = request_without_body(SECRET, f"GET {url}")
    assert verify(SECRET, headers, b"", url="https://Shop.example:443/orders?page=0") == "msg_1"
    for secret, body, other in [
        (SECRET, b"", "https://shop.example/orders?page=1"),
        (SECRET, b"", "https://evil.example/orders?page=0"),
        (SECRET, b"", None),
        (SECRET, b"x", url),
        (OTHER, b"", url),
    ]:
        with pytest.raises(NotVerified, match="no signature"):
            verify(secret, headers, body, url=other)
    with pytest.raises(NotVerified, match="not the URL"):
        verify(SECRET, headers, b"", url="https://shop.example:port/")


def test_shared_secret_verifies_an_empty_body_also_with_a_url() -> None:
    assert verify(SECRET, request_without_body(SECRET, ""), b"", url="https://shop.example/orders") == "msg_1"


def test_body_that_looks_like_a_request_is_not_one() -> None:
    url = "https://shop.example/orders"
    with pytest.raises(NotVerified):
        verify(SECRET, request_without_body(SECRET, f"GET {url}"), f"GET {url}?".encode(), url=url)


def test_webhook_listen_ends_when_its_output_is_closed() -> None:
    """As in `tidegate webhook listen | head -1`."""
    port = free_port()
    words = ["webhook", "listen", "--port", str(port), "--secret", SECRET]
    command = [sys.executable, "-m", "tidegate_client", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listener:
        assert listener.stdout
        listener.stdout.close()
        pool = urllib3.PoolManager(retries=urllib3.Retry(20, backoff_factor=0.05, backoff_max=0.5))
        status = pool.request("POST", f"http://127.0.0.1:{port}/", body=BODY, headers=signed()).status
        assert listener.stderr
        err = listener.stderr.read()

    assert status == 204, "it was verified, so the sender need not repeat it"
    assert b"Traceback" not in err
    assert listener.returncode == 0


@pytest.mark.parametrize("length", ["-1", "many", "²"])
def test_webhook_listen_answers_400_to_an_odd_length(length: str) -> None:
    listener = Listener(("127.0.0.1", 0), SECRET, Output(as_json=True, out=io.StringIO(), err=io.StringIO()), 204)
    with listener, socket.create_connection(listener.server_address) as caller:  # type: ignore[arg-type]
        caller.sendall(f"POST / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        listener.handle_request()
        assert caller.recv(100).startswith(b"HTTP/1.0 400")


def test_webhook_listen_gets_its_secret_with_the_login(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_CALLBACK_SECRET", raising=False)
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("TIDEGATE_KEY", "tg_k")
    port = free_port()
    asked = {"origin": f"http://127.0.0.1:{port}"}
    httpserver.expect_oneshot_request("/v1/callback-secret", query_string=asked).respond_with_json(
        {"callback_secret": SECRET}
    )

    assert main(["webhook", "listen", "--port", str(port), "--count", "0"]) == 0
    httpserver.check_assertions()
    assert len(httpserver.log) == 1


def test_webhook_listen_names_the_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["webhook", "listen", "--port", str(port), "--secret", SECRET]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_webhook_listen_verifies_and_prints() -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tidegate_client",
        "webhook",
        "listen",
        "--port",
        str(port),
        "--count",
        "2",
        "--json",
    ]
    environment = os.environ | {"TIDEGATE_CALLBACK_SECRET": SECRET}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as listener:
        pool = urllib3.PoolManager(retries=urllib3.Retry(20, backoff_factor=0.05, backoff_max=0.5))
        statuses = [
            pool.request("POST", f"http://127.0.0.1:{port}/", body=BODY, headers=headers).status
            for headers in (signed(OTHER), signed(), signed())
        ]
        out, _ = listener.communicate(timeout=30)

    events = [json.loads(line) for line in out.splitlines()]
    assert statuses == [401, 204, 204]
    assert [one["verified"] for one in events] == [False, True, True]
    assert [one["repeated"] for one in events[1:]] == [False, True]
    assert events[1]["data"] == {"name": "导出"}
    assert listener.returncode == 0
