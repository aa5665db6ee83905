"""Why a step of a Job cannot go on: a fault of its caller or its hosts is an outcome, one of ours an error."""

from __future__ import annotations

import json
from typing import Any

from tidegate.errors import DomainError, FileNotFound, SignatureMismatch, TransferRefused, WaveFailed

# What no retry helps against. Anything else that stops a step is tried again until the Job's deadline.
HOPELESS = (FileNotFound, SignatureMismatch, TransferRefused, WaveFailed)
_BY_NAME = {error.__name__: error for error in HOPELESS}


def refused(error: DomainError) -> dict[str, Any]:
    """The step's answer. Raised, it would count as a failed invocation and raise the operator's alarm."""
    return {"state": "refused", "wait": 0, "error": {"Error": type(error).__name__, "Cause": error.detail}}


def failure(error_name: str, cause: str) -> DomainError | None:
    """From what a step answered, or from what Step Functions caught, where the cause holds the message as JSON."""
    kind = _BY_NAME.get(error_name.rsplit(".", 1)[-1])
    if kind is None:
        return None
    try:
        told = json.loads(cause)
    except ValueError:
        told = None
    return kind(str(told["errorMessage"]) if isinstance(told, dict) and "errorMessage" in told else cause)
