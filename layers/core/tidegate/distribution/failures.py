"""Failures of a Job's steps: those caused by the caller or by hosts are results, not errors of the function."""

from __future__ import annotations

import json
from typing import Any

from tidegate.errors import DomainError, FileNotFound, SignatureMismatch, TransferRefused, WaveFailed

# Retries cannot help against these. All other failures are retried until the Job's deadline.
HOPELESS = (FileNotFound, SignatureMismatch, TransferRefused, WaveFailed)
_BY_NAME = {error.__name__: error for error in HOPELESS}


def refused(error: DomainError) -> dict[str, Any]:
    """The step's result. A raised error would count as a failed invocation and raise the operator's alarm."""
    return {"state": "refused", "wait": 0, "error": {"Error": type(error).__name__, "Cause": error.detail}}


def failure(error_name: str, cause: str) -> DomainError | None:
    """The error of a step, from its result or as Step Functions caught it, with the message as JSON in `cause`.

    None for errors that are retried."""
    kind = _BY_NAME.get(error_name.rsplit(".", 1)[-1])
    if kind is None:
        return None
    try:
        caught = json.loads(cause)
    except ValueError:
        caught = None
    return kind(str(caught["errorMessage"]) if isinstance(caught, dict) and "errorMessage" in caught else cause)
