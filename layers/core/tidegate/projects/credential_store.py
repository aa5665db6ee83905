"""Credentials of sources, by name. They are in Secrets Manager, never in a record, a log or an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of
from tidegate.errors import CredentialMissing, CredentialUnbound
from tidegate.http.credentials import Credential, read_origin

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class CredentialStore:
    """A secret holds `{"headers": {…}, "origins": ["https://host:port", …]}`."""

    def __init__(self, client: SecretsManagerClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

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
            raise CredentialUnbound(f"the credential {name} cannot be used: {error}") from None
        return Credential(name, {str(header): str(value) for header, value in headers.items()}, allowed)

    def put(self, project_id: str, name: str, headers: Mapping[str, str], origins: Sequence[str]) -> None:
        text = json.dumps({"headers": dict(headers), "origins": list(origins)})
        try:
            self._client.create_secret(Name=self._id(project_id, name), SecretString=text)
        except self._client.exceptions.ResourceExistsException:
            self._client.put_secret_value(SecretId=self._id(project_id, name), SecretString=text)

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
