"""A fake STS on loopback, which verifies signatures with botocore's own signer, and hosts that sign for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tidegate.http.client import SafeHttp
from tidegate_client.agent.aws import Credentials, signed_identity

ACCOUNT, ROLE, INSTANCE, REGION = "123456789012", "web-hosts", "i-0abc1234def567890", "eu-central-1"
HOST = f"sts.{REGION}.amazonaws.com"
SERVER = "https://api.test"
KEY_ID, SECRET, TOKEN = "ASIAEXAMPLEEXAMPLE00", "secret/of+the+role", "session-token=="
CREDENTIALS = Credentials(KEY_ID, SECRET, TOKEN, REGION)


def identity_xml(arn: str, account: str = ACCOUNT) -> str:
    return (
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>{arn}</Arn><UserId>AROAEXAMPLE:{INSTANCE}</UserId><Account>{account}</Account>"
        "</GetCallerIdentityResult><ResponseMetadata><RequestId>01234567</RequestId></ResponseMetadata>"
        "</GetCallerIdentityResponse>"
    )


def error_xml(code: str) -> str:
    return (
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
        f"<Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
    )


@dataclass
class FakeSts:
    """Answers with the identity if botocore makes the same signature, else as STS does: 403."""

    server: HTTPServer
    arn: str = f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}"
    account: str = ACCOUNT
    calls: list[str] = field(default_factory=list)
    # Answers instead, if it is set.
    answer: Callable[[], Response] | None = None

    def __post_init__(self) -> None:
        self.server.expect_request("/", "POST").respond_with_handler(self._respond)
        self._http = SafeHttp()

    def send(self, method: str, url: str, **how: Any) -> Any:
        """In place of the app's HTTP client: sends what is for STS to this server, by the real client."""
        self.calls.append(url)
        return self._http.send(method, self.server.url_for("/"), allow_private=True, **how)

    def _respond(self, request: Request) -> Response:
        if self.answer:
            return self.answer()
        if not self._is_signed(request):
            return Response(error_xml("SignatureDoesNotMatch"), 403, content_type="text/xml")
        return Response(identity_xml(self.arn, self.account), content_type="text/xml")

    def _is_signed(self, request: Request) -> bool:
        host = self.calls[-1].split("/")[2]
        given = request.headers["Authorization"]
        names = given.split("SignedHeaders=")[1].split(",")[0].split(";")
        region = given.split("/")[2]
        headers = {name: host if name == "host" else request.headers[name] for name in names}
        asked = AWSRequest("POST", f"https://{host}/", headers=headers, data=request.get_data())
        asked.context["timestamp"] = headers["x-amz-date"]
        signer = SigV4Auth(BotoCredentials(KEY_ID, SECRET, None), "sts", region)
        canonical = signer.canonical_request(asked)
        return given.endswith(signer.signature(signer.string_to_sign(asked, canonical), asked))


@dataclass(frozen=True)
class Instance:
    """An EC2 instance with a role."""

    project_id: str
    clock: Callable[[], datetime]
    role: Credentials = CREDENTIALS
    server: str = SERVER

    def identity(self, **changed: Any) -> dict[str, Any]:
        asks = replace(self, **changed)
        return signed_identity(asks.role, asks.server, asks.project_id, asks.clock())


def hangs() -> Response:
    time.sleep(3)
    return Response("")


def using(app: Any, sts: FakeSts) -> Any:
    """The app asks this STS."""
    return patch.object(app.distribution.enrolments, "_http", sts)
