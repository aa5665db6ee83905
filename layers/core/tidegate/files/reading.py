"""Reads an object in turns: what one invocation cannot finish, the next one continues where it was last saved.

The digests so far are saved as one object, so a crash leaves the old ones or the new ones. They belong to a request or
to a content: the daily sweep deletes what is left after the request has ended or the content is verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools import Logger

from tidegate.aws.s3 import StoredObject
from tidegate.aws.s3_uploads import UploadBucket
from tidegate.errors import Conflict, DomainError, RecordNotFound
from tidegate.files.model import LARGEST_SINGLE_UPLOAD, seconds_to_read
from tidegate.files.pieces import piece_size
from tidegate.files.verify import Checked, Pulse, check, in_order

if TYPE_CHECKING:
    from tidegate.files.running_digests import RunningDigests

logger = Logger(service="tidegate", child=True)

OF_REQUESTS, OF_CONTENTS = "verifying/requests/", "verifying/contents/"
# A killed function repeats at most this much. Ordinary files take less time, and nothing is saved.
SAVE_SECONDS = 60.0
# A turn ends when fewer seconds of its invocation are left, and the time for one more piece: digests can be saved only
# at the end of a piece, which has 2 GiB if the file has 5 TiB.
RESERVE_SECONDS = 60.0


def saved_for_request(project_id: str, request_id: str) -> str:
    return f"{OF_REQUESTS}{project_id}/{request_id}"


def saved_for_content(project_id: str, signature: str) -> str:
    return f"{OF_CONTENTS}{project_id}/{signature}"


@dataclass(frozen=True, slots=True)
class Turn:
    """`saved` is the key of the saved digests, `until` the end of the invocation by the monotonic clock."""

    saved: str
    until: float
    pulse: Pulse = lambda _: None


class TurnReader:
    def __init__(self, bucket: UploadBucket, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._monotonic = monotonic
        # Keys of saved digests that this process read or wrote: ordinary files have none, and need no deletion.
        self._present: set[str] = set()

    def check(self, key: str, found: StoredObject, turn: Turn, *, pieces: bool = True) -> Checked | None:
        """Reads the object and returns its digests; None if the time is over, and another turn must continue.

        Conflict if the object was replaced since the first turn. Call `forget` once the digests are recorded.
        """
        if found.size <= LARGEST_SINGLE_UPLOAD:
            return check(self._bucket, key, found, turn.pulse)
        # Not at the top: functions that read no files would load ctypes.
        from tidegate.common import sha256

        if not sha256.AVAILABLE:
            logger.warning("libcrypto cannot save a SHA-256: the object must be read within one invocation")
            return check(self._bucket, key, found, turn.pulse)
        digests = self._continued(found, turn, pieces=pieces)
        began = saved = digests.offset
        saved_at = self._monotonic()
        until = turn.until - RESERVE_SECONDS - seconds_to_read(piece_size(found.size) if pieces else 0)
        try:
            with closing(in_order(self._bucket, key, found, turn.pulse, began)) as ranges:
                for done, chunk in ranges:
                    digests.update(chunk)
                    turn.pulse(done)
                    now = self._monotonic()
                    over = now > until
                    # Looked at after the range: every turn makes progress, however short it is.
                    if done < found.size and (over or now - saved_at > SAVE_SECONDS) and (data := digests.save()):
                        self._present.add(turn.saved)
                        self._bucket.put(turn.saved, data)
                        saved, saved_at = done, now
                        if over:
                            return None
        except Conflict:
            # Otherwise a retry by the caller would fail for the same reason.
            self.forget(turn.saved)
            raise
        except DomainError as error:
            # An attempt that got further does not count against the retries.
            error.progressed = saved > began
            raise
        return digests.finish()

    def forget(self, saved: str) -> None:
        """Deletes the saved digests, if there are any."""
        if saved in self._present:
            self._bucket.delete(saved)
            self._present.discard(saved)

    def _continued(self, found: StoredObject, turn: Turn, *, pieces: bool) -> RunningDigests:
        from tidegate.files.running_digests import RunningDigests

        try:
            _, chunks = self._bucket.read(turn.saved)
        except RecordNotFound:
            return RunningDigests(found, pieces=pieces)
        self._present.add(turn.saved)
        try:
            digests = RunningDigests.restore(b"".join(chunks), pieces=pieces)
        except (ValueError, KeyError, TypeError):
            logger.exception("the saved digests are malformed: the object is read from its first byte", key=turn.saved)
            return RunningDigests(found, pieces=pieces)
        if digests.found != found:
            self.forget(turn.saved)
            raise Conflict(
                "the uploaded object was replaced while it was read: "
                f"its ETag was {digests.found.etag}, now it is {found.etag}"
            )
        return digests
