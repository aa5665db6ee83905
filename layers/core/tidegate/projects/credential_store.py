"""Credentials of sources, by name. They are in Secrets Manager, never in a record, a log or an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of
from tidegate.errors import Busy, CredentialMissing, CredentialUnbound
from tidegate.http.credentials import Credential, read_origin

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

# Secrets Manager deletes a secret in the background, and refuses a new one of the same name until that is done.
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_BEING_DELETED = ("InvalidRequestException", "ResourceNotFoundException")
# The most bytes that Secrets Manager stores in a secret.
LARGEST_SECRET = 65_536


def secret_text(headers: Mapping[str, str], origins: Sequence[str]) -> str:
    """The text of the secret that stores a credential."""
    return json.dumps({"headers": dict(headers), "origins": list(origins)})


class CredentialStore:
    """A secret contains `{"headers": {…}, "origins": ["https://host:port", …]}`."""

    def __init__(self, client: SecretsManagerClient, prefix: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._prefix = prefix
        self._sleep = sleep

    def _id(self, project_id: str, name: str) -> str:
        return f"{self._prefix}{project_id}/{name}"

    def get(self, project_id: str, name: str) -> Credential:
        """CredentialMissing if there is none; CredentialUnbound for an old one that does not say where it may go."""
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
        """Busy if a credential of that name was deleted a moment ago and Secrets Manager is still deleting it."""
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
