"""Proves which AWS role a host has. The host signs a GetCallerIdentity request, and Tidegate sends this request to STS.

The host sends a signature, not its credentials. Only the values of a few named headers come from the host. The URL and
the body are fixed here, so that STS cannot be asked for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from tidegate.errors import Busy, FetchError, IdentityRefused, SourceBroken
from tidegate.http.model import Limits

if TYPE_CHECKING:
    from tidegate.http.client import SafeHttp

SERVER_ID, PROJECT_ID, NONCE = "x-tidegate-server-id", "x-tidegate-project-id", "x-tidegate-nonce"
BODY = b"Action=GetCallerIdentity&Version=2011-06-15"
REGION = r"^(?:us-gov|af|ap|ca|cn|eu|il|me|mx|sa|us)-(?:central|(?:north|south)(?:east|west)?|east|west)-[1-9]$"
# How far the time of the signature may be from ours. STS itself accepts up to 15 minutes.
FRESH = timedelta(minutes=5)
_LIMITS = Limits(connect=1.0, read=2.0, total=3.0, max_bytes=64 * 1024)
# The headers that are sent to STS. All but Authorization must be signed.
_PASSED = frozenset(
    {
        "authorization",
        "content-type",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        SERVER_ID,
        PROJECT_ID,
        NONCE,
    }
)
# The HTTP client writes them itself, from the fixed URL and body.
_OWN = frozenset({"host", "content-length"})
_REQUIRED = frozenset({"host", "x-amz-date", SERVER_ID, PROJECT_ID})
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[A-Z0-9]{16,128}/(?P<day>[0-9]{8})/(?P<region>[a-z0-9-]{1,32})/sts/aws4_request, ?"
    r"SignedHeaders=(?P<names>[a-z0-9;-]{1,500}), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_NAMESPACE = "{https://sts.amazonaws.com/doc/2011-06-15/}"
_ROLE_ARN = re.compile(r"arn:aws(?:-cn|-us-gov)?:sts::([0-9]{12}):assumed-role/([^/\s]{1,64})/([^/\s]{2,64})")
_THROTTLED = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"})


class Signed(NamedTuple):
    """A request to STS that is well formed, fresh and meant for this installation. STS has not verified it yet."""

    host: str
    headers: Mapping[str, str]
    project_id: str
    signature: str


class AwsIdentity(NamedTuple):
    """The role that a caller has assumed, and the name of its session. On EC2, that name is the id of the instance."""

    account: str
    role: str
    session: str


def read_signed(region: str, headers: Mapping[str, str], servers: Collection[str], now: datetime) -> Signed:
    """The signed request, after every check that needs no call to STS. `servers`: the host names of this API.

    IdentityRefused if a check fails; its text says what is wrong."""
    if not re.fullmatch(REGION, region):
        raise IdentityRefused("the region is not the name of an AWS region, such as eu-central-1")
    given = {name.lower(): value for name, value in headers.items()}
    if len(given) != len(headers) or not given.keys() <= _PASSED | _OWN:
        raise IdentityRefused(f"the headers may be, each once: {', '.join(sorted(_PASSED | _OWN))}")
    if not all(_VALUE.fullmatch(value) for value in given.values()):
        raise IdentityRefused("the values of the headers must be printable ASCII")
    parts = _AUTHORIZATION.fullmatch(given.get("authorization", ""))
    if parts is None:
        raise IdentityRefused("the header Authorization is not a signature of version 4 for the service sts")
    names, sent = set(parts["names"].split(";")), given.keys() & _PASSED
    if unsigned := sorted((sent | _REQUIRED) - {"authorization"} - names):
        raise IdentityRefused(f"the signature does not cover the header {unsigned[0]}")
    if missing := sorted((names | _REQUIRED) - given.keys() - _OWN):
        raise IdentityRefused(f"the signed header {missing[0]} was not sent")
    suffix = ".cn" if region.startswith("cn-") else ""
    host = f"sts.{region}.amazonaws.com{suffix}"
    if given.get("host", host) != host or parts["region"] != region:
        raise IdentityRefused(f"the request is not signed for {host}: STS is asked in its region only")
    if given[SERVER_ID].lower() not in servers:
        raise IdentityRefused(
            f"the request is signed for the API {given[SERVER_ID][:300]}, but this is {' or '.join(sorted(servers))}"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", given[PROJECT_ID]):
        raise IdentityRefused("the header X-Tidegate-Project-Id is not the id of a project")
    _require_fresh(given["x-amz-date"], parts["day"], now)
    passed = {name: given[name] for name in sorted(sent)}
    return Signed(host, passed, given[PROJECT_ID], parts["signature"])


def _require_fresh(stamp: str, day: str, now: datetime) -> None:
    moment = None
    if re.fullmatch(r"[0-9]{8}T[0-9]{6}Z", stamp) and stamp.startswith(day):
        with suppress(ValueError):
            moment = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if moment is None:
        raise IdentityRefused("the header X-Amz-Date is not the time of the signature, such as 20261224T180000Z")
    if abs(now - moment) > FRESH:
        raise IdentityRefused(
            f"the request was signed at {stamp}, more than 5 minutes before or after the API's clock: check the host's"
        )


def ask_sts(http: SafeHttp, signed: Signed) -> AwsIdentity:
    """The identity that STS confirms. IdentityRefused if STS does not confirm it; Busy if STS cannot be asked now."""
    try:
        reply = http.send(
            "POST",
            f"https://{signed.host}/",
            headers=signed.headers,
            body=BODY,
            limits=_LIMITS,
            redirects=0,
            project_id=signed.project_id,
        )
    except FetchError as error:
        raise Busy(f"{signed.host} cannot be asked now ({error.detail}): sign and try again", retry_after=5) from error
    if reply.status >= 500 or reply.status == 429:
        raise Busy(f"{signed.host} answers {reply.status}: sign and try again", retry_after=5)
    found = _texts(reply.body)
    if reply.status != 200:
        why = found.get("ErrorResponse/Error/Code", "")
        if why in _THROTTLED:
            raise Busy(f"{signed.host} is throttled: sign and try again", retry_after=5)
        reason = f" ({why})" if re.fullmatch(r"[A-Za-z.]{1,64}", why) else ""
        raise IdentityRefused(f"{signed.host} does not accept the signature: it answers {reply.status}{reason}")
    result = "GetCallerIdentityResponse/GetCallerIdentityResult"
    arn = _ROLE_ARN.fullmatch(found.get(f"{result}/Arn", ""))
    if arn is None or arn[1] != found.get(f"{result}/Account"):
        raise IdentityRefused(
            "only an assumed role may enrol, such as that of an EC2 instance: this identity is not one"
        )
    return AwsIdentity(*arn.groups())


def _texts(body: bytes) -> dict[str, str]:
    """The texts in an answer of STS, by path (`A/B/C`, three levels). Elements of other namespaces are left out."""
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root = fromstring(body, forbid_dtd=True)
    except (DefusedXmlException, ParseError, ValueError, LookupError) as error:
        raise SourceBroken("the answer of STS is not the XML that it documents") from error
    found = {}
    for part in root:
        for leaf in part:
            path = [each.tag for each in (root, part, leaf)]
            if all(tag.startswith(_NAMESPACE) for tag in path):
                found["/".join(tag.removeprefix(_NAMESPACE) for tag in path)] = (leaf.text or "").strip()
    return found
