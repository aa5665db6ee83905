"""How an EC2 instance finds its zone, and how it proves its AWS role to Tidegate with a signed STS request.

Requests are signed here (Signature Version 4, a few lines with `hmac`), so that the agent does not need botocore."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidegate_client.errors import UsageError

# Who made this machine, and where an EC2 instance asks about itself.
_VENDOR, _METADATA = Path("/sys/class/dmi/id/sys_vendor"), "169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
_PORTS = {"https": 443, "http": 80}


class Credentials(NamedTuple):
    """Temporary credentials of an AWS role, and the region."""

    key_id: str
    secret: str
    token: str
    region: str

    def __repr__(self) -> str:
        return f"Credentials({self.key_id!r})"


def availability_zone(vendor: Path = _VENDOR, service: str = _METADATA) -> str | None:
    """Returns the availability zone of this EC2 instance, such as eu-central-1a, from the instance metadata.

    Returns None if the machine is no EC2 instance, or if the metadata service gives no usable answer. A machine that is
    no EC2 instance sends no request. In a container the answer may be lost, because by default it passes one network
    hop only."""
    try:
        if "Amazon EC2" not in vendor.read_text():
            return None
        with _Metadata(service) as metadata:
            return metadata.get("/latest/meta-data/placement/availability-zone")[:64] or None
    except (OSError, http.client.HTTPException, ValueError):
        return None


def credentials(environ: Mapping[str, str] = os.environ, service: str = _METADATA) -> Credentials:
    """Returns the role's credentials. Raises UsageError if there are none.

    The credentials come from AWS_ACCESS_KEY_ID and the variables that belong to it. If these are not set, they come
    from the metadata of the EC2 instance."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if key_id := environ.get("AWS_ACCESS_KEY_ID"):
        if not region:
            raise UsageError("the AWS region is not known: set AWS_REGION")
        return Credentials(
            key_id, environ.get("AWS_SECRET_ACCESS_KEY", ""), environ.get("AWS_SESSION_TOKEN", ""), region
        )
    try:
        with _Metadata(service) as metadata:
            role = metadata.get(_ROLES).split("\n")[0].strip()
            given = json.loads(metadata.get(_ROLES + role))
            region = region or metadata.get("/latest/meta-data/placement/region").strip()
            return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["Token"], region)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"no AWS credentials: the instance metadata gives none ({error or type(error).__name__}). Attach a role to "
            "the instance, let containers reach its metadata (hop limit 2), or set AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION"
        ) from None


class _Metadata:
    """A session with the EC2 metadata service (IMDSv2), which requires a token for each request."""

    def __init__(self, service: str) -> None:
        self._connection = http.client.HTTPConnection(service, timeout=1)
        self._headers: dict[str, str] = {}

    def __enter__(self) -> _Metadata:
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._connection.close)
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            self._headers = {"X-aws-ec2-metadata-token": self._call("PUT", "/latest/api/token", lasts)}
            on_error.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> str:
        return self._call("GET", path, self._headers)

    def _call(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        self._connection.request(method, path, headers=dict(headers))
        answer = self._connection.getresponse()
        text = answer.read(16 * 1024).decode("ascii")
        if answer.status != 200:
            raise ValueError(f"the metadata service answers {answer.status}")
        return text


# --- signing


def server_id(url: str) -> str:
    """Returns host and port of the API's URL. Both are signed, so that another server cannot reuse the request."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port not in (None, _PORTS.get(parts.scheme)) else ""
    return f"{parts.hostname or ''}{port}"


def signed_identity(
    role: Credentials, url: str, project_id: str, now: datetime | None = None, nonce: str | None = None
) -> dict[str, Any]:
    """Returns the field `aws` for POST /v1/agents/enrol: the signed headers of a GetCallerIdentity request.

    Tidegate accepts the headers once, within five minutes."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    suffix = ".cn" if role.region.startswith("cn-") else ""
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "host": f"sts.{role.region}.amazonaws.com{suffix}",
        "x-amz-date": stamp,
        **({"x-amz-security-token": role.token} if role.token else {}),
        "x-tidegate-nonce": nonce or secrets.token_hex(16),
        "x-tidegate-project-id": project_id,
        "x-tidegate-server-id": server_id(url),
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(_BODY).hexdigest()}"
    scope = f"{stamp[:8]}/{role.region}/sts/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{role.secret}".encode()
    for part in (*scope.split("/"), to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={role.key_id}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )
    return {"region": role.region, "headers": headers}
