"""`verify`: reads a large upload, and makes it ready if it is what was announced."""

from __future__ import annotations

from tidegate.errors import SignatureMismatch
from tidegate.files.reading import TurnReader, saved_for_request
from tidegate.files.upload import Uploads
from tidegate.ingest.ports import Outcome, Step
from tidegate.queue.model import Request


class Verify:
    def __init__(self, uploads: Uploads, reader: TurnReader) -> None:
        self._uploads = uploads
        self._reader = reader

    def __call__(self, step: Step) -> Outcome:
        request, turn = step.request, step.turn(lambda done: {"bytes": done})
        file_id = str(request.payload["file_id"])
        try:
            verified = self._uploads.verify(
                request.project_id, file_id, lambda key, found: self._reader.check(key, found, turn)
            )
        except SignatureMismatch:
            self.discard(request)
            raise
        if verified is None:
            return Outcome(state={"goes_on": True})
        file, writes = verified
        result = {"file_id": file.file_id, "signature": file.signature, "size": file.size}

        def after() -> None:
            self._uploads.drop_duplicate(file)
            self.discard(request)

        return Outcome(result, writes, after=after)

    def discard(self, request: Request) -> None:
        """Deletes the saved digests of a request that has ended."""
        self._reader.forget(saved_for_request(request.project_id, request.request_id))
