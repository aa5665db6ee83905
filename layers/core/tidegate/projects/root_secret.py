"""The root secret that callback secrets are derived from: an SSM SecureString, created by the first function that
needs it."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.errors import Busy

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

_BYTES = 32
# Parameter Store may not return at once what another function has just stored.
_READS = 5


class RootSecret:
    """Call it for the bytes, which are read once per process. CloudFormation cannot create a SecureString."""

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
        """Does not overwrite: of several functions that try at once, one stores its value and the others read it."""
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
