"""Secrets of projects: derived callback secrets, what they sign, and stored credentials of sources."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from botocore.exceptions import ClientError

from tidegate.aws import keys
from tidegate.aws.table import Store, Write, code_of, delete, put
from tidegate.common.ids import Clock
from tidegate.errors import (
    Busy,
    Conflict,
    CredentialMissing,
    CredentialUnbound,
    QuotaExceeded,
    RecordNotFound,
    WrongState,
)
from tidegate.http.guard import Credential, origin_of_text, read_origin
from tidegate.projects.audit import SYSTEM, AuditLine, act, audit_write
from tidegate.projects.model import Project
from tidegate.projects.projects import ProjectStore
from tidegate.records import F, item_of, record_from

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_ssm import SSMClient
    from standardwebhooks import Webhook

# --- root secret
# The root secret that callback secrets are derived from: an SSM SecureString, created by the first function that
# needs it.

_BYTES = 32
# Parameter Store may not return at once what another function has just stored.
_READS = 5


class RootSecret:
    """The root secret. Call the object to get the secret's bytes, which are read once per process.

    The product creates the secret itself, because CloudFormation cannot create a SecureString.
    """

    def __init__(self, client: SSMClient, name: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._name = name
        self._sleep = sleep
        self._lock = threading.Lock()
        self._known: bytes | None = None

    def __call__(self) -> bytes:
        with self._lock:
            if self._known is None:
                self._known = base64.b64decode(self._read() or self._create())
            return self._known

    def _read(self) -> str | None:
        try:
            return self._client.get_parameter(Name=self._name, WithDecryption=True)["Parameter"]["Value"]
        except self._client.exceptions.ParameterNotFound:
            return None

    def _create(self) -> str:
        """Stores a new secret, unless one exists, and returns the stored secret.

        If several functions do this at once, all of them return the same secret.
        """
        made = base64.b64encode(secrets.token_bytes(_BYTES)).decode()
        try:
            self._client.put_parameter(
                Name=self._name,
                Value=made,
                Type="SecureString",
                Overwrite=False,
                Description="Tidegate derives callback secrets from it; deleting it changes every project's secret",
            )
        except self._client.exceptions.ParameterAlreadyExists:
            return self._read_made_elsewhere()
        return made

    def _read_made_elsewhere(self) -> str:
        for attempt in range(_READS):
            found = self._read()
            if found:
                return found
            self._sleep(0.1 * 2**attempt)
        raise Busy(f"the SSM parameter {self._name} exists but cannot be read yet: try again in a few seconds")


# --- derived secrets
# Derives the secrets that sign outgoing requests from one root secret, so that none is stored in the table.

_INFO = "tidegate callback secret"
_ORIGIN_INFO = "tidegate origin secret"
_BLOCK = hashlib.sha256().digest_size


def hkdf_sha256(secret: bytes, info: bytes, *, length: int = 32, salt: bytes = b"") -> bytes:
    """HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt or bytes(_BLOCK), secret, "sha256")
    output = block = b""
    for counter in range(1, -(-length // _BLOCK) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


def derived_secret(root: bytes, project_id: str, generation: int) -> str:
    """Returns a project's `whsec_…` secret of one generation. The secret never changes, and reveals no other secret."""
    return _derived(root, _INFO, project_id, str(generation))


# A batch signs thousands of requests a second for one receiver.
@lru_cache(maxsize=1024)
def origin_secret(root: bytes, project_id: str, generation: int, origin: str) -> str:
    """Returns the `whsec_…` secret of the receiver with the origin `https://host:port`.

    No other receiver can use it.
    """
    return _derived(root, _ORIGIN_INFO, project_id, str(generation), origin)


def _derived(root: bytes, *info: str) -> str:
    return "whsec_" + base64.b64encode(hkdf_sha256(root, "\0".join(info).encode())).decode()


# --- sealed secrets
# Secrets of callers that are kept for a while: encrypted by AES-256-GCM, with a key that is derived for each owner.

_SEALED_INFO = "tidegate sealed secret"
_NONCE = 12


def sealed(root: bytes, secret: str, *owner: str) -> str:
    """Returns the secret as an encrypted text. Only `opened` with the same owner and root secret can read the text."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce, key = secrets.token_bytes(_NONCE), _sealing_key(root, owner)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, secret.encode(), None)).decode()


def opened(root: bytes, text: str, *owner: str) -> str:
    """Returns the secret in a text that `sealed` made. ValueError if the owner or the root secret is not the same."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = base64.b64decode(text)
    try:
        return AESGCM(_sealing_key(root, owner)).decrypt(data[:_NONCE], data[_NONCE:], None).decode()
    except InvalidTag:
        raise ValueError("sealed for another owner, or under another root secret") from None


def _sealing_key(root: bytes, owner: Sequence[str]) -> bytes:
    return hkdf_sha256(root, "\0".join((_SEALED_INFO, *owner)).encode())


# --- callback secrets
# The secrets that sign a project's outgoing requests: one for each receiver, and the older one that all receivers
# share. They are derived, not stored. During a rotation there are two of each, and all of them sign.


class Signer(Protocol):
    """Makes the Standard Webhooks headers of a request, with one signature for each valid secret.

    A secret is either shared by all receivers of the project, or belongs to the receiver of this request alone. A
    shared secret signs the body. The receiver's own secret also signs the body, or the text `GET {url}` if there is no
    body.
    """

    def __call__(
        self, project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str
    ) -> dict[str, str]: ...


class CallbackSecrets:
    def __init__(self, store: ProjectStore, root: Callable[[], bytes], clock: Clock) -> None:
        self._store = store
        self._root = root
        self._clock = clock

    def all_of(self, project: Project) -> tuple[str, ...]:
        """The valid secrets that all receivers of the project share, newest first."""
        derived = (derived_secret(self._root(), project.project_id, number) for number in project.secret_generations)
        return (*derived, *project.callback_secrets)

    def newest(self, project: Project) -> str:
        return self.all_of(project)[0]

    def of_origin(self, project: Project, origin: str) -> tuple[str, ...]:
        """The valid secrets of one receiver, newest first. `origin` has the form that `read_origin` returns."""
        # A stored secret is older than any generation.
        generations = (*project.secret_generations, *((0,) if project.callback_secrets else ()))
        return tuple(origin_secret(self._root(), project.project_id, number, origin) for number in generations)

    def sign(self, project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str) -> dict[str, str]:
        """Returns the headers of a request to `url`, with one signature for each valid secret: see `Signer`."""
        shared = self.all_of(project) if project.shared_signatures else ()
        of_origin = self.of_origin(project, origin_of_text(url))
        return signed_headers(shared, message_id, now, body, of_origin=of_origin, url=url)

    def rotate(self, project_id: str, who: str = SYSTEM) -> str:
        """Adds a new secret and returns it. The previous secret stays valid until it is retired."""
        project = self._project(project_id)
        if len(project.secret_generations) + len(project.callback_secrets) > 1:
            raise WrongState(
                "a rotation is in progress: end it first with "
                f"DELETE /v1/projects/{project_id}/callback-secrets/previous"
            )
        newest = max(project.secret_generations, default=0) + 1
        rotated = replace(project, secret_generations=(newest, *project.secret_generations))
        self._save(project, rotated, who, "callback_secret.rotate")
        return self.newest(rotated)

    def retire(self, project_id: str, who: str = SYSTEM) -> None:
        """Ends a rotation: only the newest secret signs from now on. Old stored secrets are removed."""
        project = self._project(project_id)
        generations, stored = project.secret_generations[:1], project.callback_secrets
        kept = () if generations else stored[:1]
        if (generations, kept) == (project.secret_generations, stored):
            raise WrongState(
                f"there is no old secret to retire: rotate first with POST /v1/projects/{project_id}/callback-secrets"
            )
        left = replace(project, secret_generations=generations, callback_secrets=kept)
        self._save(project, left, who, "callback_secret.retire")

    def _project(self, project_id: str) -> Project:
        project = self._store.get(project_id, consistent=True)
        if project is None:
            raise RecordNotFound(f"no project has the id {project_id}")
        return project

    def _save(self, was: Project, now: Project, who: str, action: str) -> None:
        line = act(was.project_id, was.project_id, self._clock(), who, action)
        if not self._store.set_secrets(was, now, line):
            raise Conflict("the project's callback secrets were changed at the same time: try again")


# --- signatures
# Standard Webhooks signatures of callbacks, batch items and requests for pages.


@lru_cache(maxsize=1024)
def _signer(secret: str) -> Webhook:
    from standardwebhooks import Webhook

    return Webhook(secret)


def signed_headers(
    secrets: Sequence[str],
    message_id: str,
    now: datetime,
    body: bytes = b"",
    *,
    of_origin: Sequence[str] = (),
    url: str = "",
) -> dict[str, str]:
    """Returns the Standard Webhooks headers, with one signature for each secret.

    During a rotation, a receiver may know the old or the new secret. `secrets` are shared by all receivers of the
    project. Their signatures come first, for receivers that read only one signature. `of_origin` belong to this
    receiver alone. They sign `GET {url}` if there is no body.
    """
    text = body.decode()
    own = text or f"GET {url}"
    signatures = [_signer(secret).sign(message_id, now, text) for secret in secrets]
    signatures += [_signer(secret).sign(message_id, now, own) for secret in of_origin]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """A credential as it is shown, without the values of its headers."""

    name: Annotated[str, F("name of the credential")]
    origins: Annotated[Sequence[str], F("the only origins that get the headers")]
    headers: Annotated[Sequence[str], F("names of the headers; their values are never shown")]
    updated_at: Annotated[str, F("when it was last stored, ISO 8601 UTC")]
    updated_by: Annotated[str, F("key_id of whoever stored it")]


# The most credentials of one project. AWS bills each as a secret, and the list of them is one answer.
MOST_CREDENTIALS = 500
_RETRY_SECONDS = 3600
# 500 records of the largest size are 4 MB; a page has 1 MB.
_PAGES = 8


class CredentialRecords(Store):
    """Credentials in the table, without their headers.

    A record is written before its secret. After a crash in between, the list shows a credential whose headers are not
    stored. A repeated PUT completes it.
    """

    def put(self, project_id: str, record: CredentialRecord, line: AuditLine) -> None:
        """Stores or replaces a record. Raises QuotaExceeded if a new record would exceed the limit.

        Requests at the same moment may exceed the limit by a few records. That is allowed, because the limit only
        bounds costs and the size of the list.
        """
        self._require_room(project_id, record.name)
        self._write(put(keys.credential(project_id, record.name) | item_of(record)), line)

    def delete(self, project_id: str, name: str, line: AuditLine) -> None:
        self._write(delete(keys.credential(project_id, name)), line)

    def _require_room(self, project_id: str, name: str) -> None:
        if self._table.get(keys.credential(project_id, name)) is not None:
            return
        stored, _ = self._table.count(keys.credentials(project_id), pages=_PAGES)
        if stored >= MOST_CREDENTIALS:
            raise QuotaExceeded(
                f"the project has {stored} credentials, and {MOST_CREDENTIALS} are allowed: delete an unused one "
                "with DELETE /v1/credentials/{name}",
                retry_after=_RETRY_SECONDS,
            )

    def _write(self, write: Write, line: AuditLine) -> None:
        self._table.transact([write, audit_write(line)])

    def list(self, project_id: str) -> list[CredentialRecord]:
        """Returns the project's credentials, sorted by name. Credentials from before this list existed are missing."""
        found = self._table.query_all(keys.credentials(project_id))
        return [record_from(CredentialRecord, item) for item in found]


# Secrets Manager deletes a secret in the background, and refuses a new one of the same name until that is done.
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_BEING_DELETED = ("InvalidRequestException", "ResourceNotFoundException")
# The most bytes that Secrets Manager stores in a secret.
LARGEST_SECRET = 65_536
CREDENTIAL_NAME = r"^[A-Za-z0-9_.-]{1,100}$"


def secret_text(headers: Mapping[str, str], origins: Sequence[str]) -> str:
    """The text of the secret that stores a credential."""
    return json.dumps({"headers": dict(headers), "origins": list(origins)})


class CredentialStore:
    """Credentials of sources, by name. They are in Secrets Manager, never in a record, a log or an answer.

    A secret contains `{"headers": {…}, "origins": ["https://host:port", …]}`.
    """

    def __init__(self, client: SecretsManagerClient, prefix: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._prefix = prefix
        self._sleep = sleep

    def _id(self, project_id: str, name: str) -> str:
        return f"{self._prefix}{project_id}/{name}"

    def get(self, project_id: str, name: str) -> Credential:
        """Returns the credential. Raises CredentialMissing if there is none.

        Raises CredentialUnbound if the credential has no valid origins. Old credentials have none.
        """
        try:
            text = self._client.get_secret_value(SecretId=self._id(project_id, name))["SecretString"]
        except ClientError as error:
            if code_of(error) in ("ResourceNotFoundException", "InvalidRequestException"):
                raise CredentialMissing(
                    f"no credential is named {name}: store it with PUT /v1/credentials/{name}"
                ) from None
            raise
        held = _read(text)
        headers, origins = held.get("headers"), held.get("origins")
        if not isinstance(headers, dict) or not isinstance(origins, list) or not origins:
            raise CredentialUnbound(
                f"the credential {name} names no origins, so it is sent nowhere: store it again with "
                f'PUT /v1/credentials/{name} {{"headers": …, "origins": ["https://host"]}}'
            )
        try:
            allowed = frozenset(read_origin(str(origin)) for origin in origins)
        except ValueError as error:
            raise CredentialUnbound(
                f"the credential {name} cannot be used: {error}. Store it again with PUT /v1/credentials/{name}"
            ) from None
        return Credential(name, {str(header): str(value) for header, value in headers.items()}, allowed)

    def put(self, project_id: str, name: str, headers: Mapping[str, str], origins: Sequence[str]) -> None:
        """Stores or replaces a credential.

        Raises Busy while Secrets Manager is still deleting an old credential of the same name.
        """
        text = secret_text(headers, origins)
        for pause in (*_PAUSES, None):
            try:
                self._put(self._id(project_id, name), text)
                return
            except ClientError as error:
                if code_of(error) not in _BEING_DELETED:
                    raise
                if pause is None:
                    raise Busy(f"the former credential {name} is still being deleted: try again in a minute") from error
                self._sleep(pause)

    def _put(self, secret_id: str, text: str) -> None:
        try:
            self._client.create_secret(Name=secret_id, SecretString=text)
        except self._client.exceptions.ResourceExistsException:
            self._client.put_secret_value(SecretId=secret_id, SecretString=text)

    def delete(self, project_id: str, name: str) -> None:
        try:
            self._client.delete_secret(SecretId=self._id(project_id, name), ForceDeleteWithoutRecovery=True)
        except self._client.exceptions.ResourceNotFoundException:
            return


def _read(text: str) -> dict[str, Any]:
    try:
        held = json.loads(text)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}
