"""`verify`: reads a large upload, and makes it ready if it is what was announced."""

from __future__ import annotations

from tidegate.files.upload import Uploads
from tidegate.ingest.ports import Outcome, Step


class Verify:
    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file_id = str(request.payload["file_id"])
        file, writes = self._uploads.verify(request.project_id, file_id, lambda done: step.heartbeat({"bytes": done}))
        result = {"file_id": file.file_id, "signature": file.signature, "size": file.size}
        return Outcome(result, writes, after=lambda: self._uploads.drop_duplicate(file))
