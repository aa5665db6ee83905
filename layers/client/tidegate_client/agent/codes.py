"""The result codes that an agent reports."""

from __future__ import annotations

import errno
from enum import IntEnum

from tidegate_client.agent.refusals import RefusedOwner, RefusedPath, StagedFileLost, Superseded, UpdateFailed
from tidegate_client.errors import ChecksumMismatch, TransferError


class Code(IntEnum):
    """0, 115 and 409 have a meaning for the API; the others name the reason of a failure."""

    DONE = 0
    IN_PROGRESS = 115
    SUPERSEDED = 409
    FETCH_FAILED = 1001
    WRONG_CONTENT = 1002
    PATH_REFUSED = 1003
    WRITE_FAILED = 1004
    NO_SPACE = 1005
    OWNER_REFUSED = 1006
    UPDATE_FAILED = 1007
    STAGED_FILE_LOST = 1008
    INTERNAL = 1099


def code_of(error: Exception) -> Code:
    """The code for the error that ended a transfer."""
    match error:
        case ChecksumMismatch():
            return Code.WRONG_CONTENT
        case TransferError():
            return Code.FETCH_FAILED
        case Superseded():
            return Code.SUPERSEDED
        case RefusedPath():
            return Code.PATH_REFUSED
        case RefusedOwner():
            return Code.OWNER_REFUSED
        case UpdateFailed():
            return Code.UPDATE_FAILED
        case StagedFileLost():
            return Code.STAGED_FILE_LOST
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return Code.NO_SPACE
        case OSError():
            return Code.WRITE_FAILED
        case _:
            return Code.INTERNAL
