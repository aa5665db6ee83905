"""Credentials of sources, by name: in Secrets Manager, never in a record, a log or an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from tidegate.aws.table import code_of
from tidegate.errors import CredentialMissing

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class CredentialStore:
    """A secret holds `{"headers": {…}}`, or just the value of the Cookie header."""

    def __init__(self, client: SecretsManagerClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def _id(self, project_id: str, name: str) -> str:
        return f"{self._prefix}{project_id}/{name}"

    def headers(self, project_id: str, name: str) -> Mapping[str, str]:
        try:
            text = self._client.get_secret_value(SecretId=self._id(project_id, name))["SecretString"]
        except ClientError as error:
            if code_of(error) in ("ResourceNotFoundException", "InvalidRequestException"):
                raise CredentialMissing(f"no credential is named {name}") from None
            raise
        try:
            held = json.loads(text)
        except ValueError:
            held = None
        if isinstance(held, dict) and isinstance(held.get("headers"), dict):
            return {str(header): str(value) for header, value in held["headers"].items()}
        return {"Cookie": text}

    def put(self, project_id: str, name: str, headers: Mapping[str, str]) -> None:
        text = json.dumps({"headers": dict(headers)})
        try:
            self._client.create_secret(Name=self._id(project_id, name), SecretString=text)
        except self._client.exceptions.ResourceExistsException:
            self._client.put_secret_value(SecretId=self._id(project_id, name), SecretString=text)

    def delete(self, project_id: str, name: str) -> None:
        try:
            self._client.delete_secret(SecretId=self._id(project_id, name), ForceDeleteWithoutRecovery=True)
        except self._client.exceptions.ResourceNotFoundException:
            return
