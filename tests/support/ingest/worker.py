"""A separate process that ingests one file with the real HTTP and S3 adapters and prints its peak memory in MB."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidegate.app import app
from tidegate.files.model import File
from tidegate.ingest import Step
from tidegate.ingest.download import download
from tidegate.queue.model import Request

_NOW = "2026-11-16T05:00:00.000Z"
ROOT = Path(__file__).resolve().parents[3]


class Files:
    def require(self, project_id: str, file_id: str) -> File:
        return File(file_id, project_id, 1, 2, "/in/large.bin", "large.bin", "coming", _NOW)

    def ready_object(self, project_id: str, signature: str) -> str | None:
        return None

    def object_of(self, project_id: str, signature: str) -> str:
        return f"content/{project_id}/{signature}"

    def require_room(self, project_id: str, size: int) -> None:
        return None

    def finish_writes(self, file: File, **_: Any) -> list[Any]:
        return []


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main(url: str, *, resume: bool = False) -> None:
    """Ingests `url`. With `resume` it continues the upload of an earlier process, as recorded in the table."""
    # Load the same modules as the deployed function, since they count towards its memory.
    spec = importlib.util.spec_from_file_location("ingest_function", ROOT / "functions/ingest/app.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    ingest = app().ingest
    projects: Any = SimpleNamespace(get=lambda _: SimpleNamespace(allow_private_urls=True))
    files: Any = Files()
    unfinished: Any = SimpleNamespace(
        get=lambda request: None, begin=lambda request, begun: begun, forget_write=lambda request: None
    )
    pauses: Any = SimpleNamespace(not_pausing=lambda _project_id, urls: urls)
    ingest.projects, ingest.files, ingest.host_pauses = projects, files, pauses
    if not resume:
        ingest.unfinished = unfinished
    payload = {"file_id": "file-1", "source_url": url}
    request = Request("req-1", "prj-1", "download", "no_cookie", 5, "running", _NOW, payload, attempt=1)
    outcome = download(ingest, Step(request, lambda _: None, 800))
    sys.stdout.write(json.dumps({"peak_mb": peak_megabytes(), **outcome.result}))


if __name__ == "__main__":
    main(sys.argv[1], resume=sys.argv[2:] == ["resume"])
