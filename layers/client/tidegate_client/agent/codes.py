from __future__ import annotations

import errno
from enum import IntEnum

from tidegate_client.agent.place import RefusedPath
from tidegate_client.errors import ChecksumMismatch, TransferError


class Code(IntEnum):
    """What the agent reports; 0 and 115 are the API's, the rest are told apart for whoever looks for the reason."""

    DONE = 0
    IN_PROGRESS = 115
    FETCH_FAILED = 1001
    WRONG_CONTENT = 1002
    PATH_REFUSED = 1003
    WRITE_FAILED = 1004
    NO_SPACE = 1005
    INTERNAL = 1099


def code_of(error: Exception) -> Code:
    match error:
        case ChecksumMismatch():
            return Code.WRONG_CONTENT
        case TransferError():
            return Code.FETCH_FAILED
        case RefusedPath():
            return Code.PATH_REFUSED
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return Code.NO_SPACE
        case OSError():
            return Code.WRITE_FAILED
        case _:
            return Code.INTERNAL
