"""Credentials in Secrets Manager, which deletes a secret in the background."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tidegate.errors import Busy
from tidegate.projects.secrets import CredentialStore

DELETING = "You can't create this secret because a secret with this name is already scheduled for deletion."


class Exists(ClientError):
    pass


class Secrets:
    """Answers the first calls with these error codes, then takes the secret."""

    class exceptions:
        ResourceExistsException = Exists

    def __init__(self, *codes: str) -> None:
        self.codes = list(codes)
        self.stored: dict[str, str] = {}

    def create_secret(self, *, Name: str, SecretString: str) -> None:
        self._answer("CreateSecret", Name, SecretString)

    def put_secret_value(self, *, SecretId: str, SecretString: str) -> None:
        self._answer("PutSecretValue", SecretId, SecretString)

    def _answer(self, operation: str, name: str, text: str) -> None:
        if self.codes:
            code = self.codes.pop(0)
            kind = Exists if code == "ResourceExistsException" else ClientError
            raise kind({"Error": {"Code": code, "Message": DELETING}}, operation)
        self.stored[name] = text


def put(secrets: Any) -> list[float]:
    slept: list[float] = []
    CredentialStore(secrets, "tidegate/", slept.append).put("prj-1", "shop", {"a": "b"}, ["https://shop.test"])
    return slept


@pytest.mark.parametrize(
    "codes",
    [
        ["InvalidRequestException"],
        ["ResourceExistsException", "InvalidRequestException"],
        ["ResourceExistsException", "ResourceNotFoundException"],
    ],
)
def test_credential_can_be_stored_again_right_after_its_deletion(codes: list[str]) -> None:
    secrets = Secrets(*codes)
    assert put(secrets) == [0.5]
    assert list(secrets.stored) == ["tidegate/prj-1/shop"]


def test_caller_is_asked_to_try_again_while_the_deletion_lasts() -> None:
    with pytest.raises(Busy):
        put(Secrets(*["InvalidRequestException"] * 9))


def test_other_refusals_are_not_repeated() -> None:
    secrets = Secrets("AccessDeniedException")
    with pytest.raises(ClientError):
        put(secrets)
    assert not secrets.stored
