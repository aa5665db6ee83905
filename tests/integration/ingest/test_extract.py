"""`extract` makes library files of an archive in the library."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Any

import pytest

from tests.support.ingest.running import BIZ, Library
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.errors import WorkerLost
from tidegate.ingest import archives as extract
from tidegate.ingest import model

FILES = {"bin/tool": b"tool" * 5000, "doc/a.txt": b"a" * 100, "doc/b.txt": b"b" * 100}


def archived(library: Library, source: FileSource, files: dict[str, bytes]) -> str:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    source.files["/a.zip"] = Hosted(made.getvalue())
    asked = library.ask(source.url("/a.zip"))
    library.run()
    return str(asked["file_id"])


def extracted(library: Library, file_id: str, **more: Any) -> dict[str, Any]:
    request = library.submit("extract", {"file_id": file_id, "file_path": "/release/1/", **more})
    library.run()
    return library.request(request["request_id"])


def listed(library: Library) -> dict[str, dict[str, Any]]:
    answer = library.cloud.http("GET", "/v1/files?limit=100", key=library.project.key).json()
    return {file["file_path"]: file for file in answer["items"] if file["file_path"].startswith("/release/")}


def test_files_of_an_archive_become_files_of_the_library(library: Library, source: FileSource) -> None:
    done = extracted(library, archived(library, source, FILES))

    assert (done["status"], done["result"]["files"]) == ("completed", 3)
    found = listed(library)
    assert {path: (file["state"], file["signature"]) for path, file in found.items()} == {
        f"/release/1/{name}": ("ready", hashlib.sha256(body).hexdigest()) for name, body in FILES.items()
    }


def test_only_files_that_match_the_globs_are_extracted(library: Library, source: FileSource) -> None:
    extracted(library, archived(library, source, FILES), include=["doc/*"], exclude=["b.*"])
    assert set(listed(library)) == {"/release/1/doc/a.txt"}


def test_entry_larger_than_a_part_is_stored_in_parts(
    library: Library, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (extract, model):
        monkeypatch.setattr(module, "PART_BYTES", 5 * 1024 * 1024)
    body = hashlib.shake_128(b"seed").digest(12 * 1024 * 1024 + 7)
    assert extracted(library, archived(library, source, {"large": body}))["status"] == "completed"
    assert listed(library)["/release/1/large"]["signature"] == hashlib.sha256(body).hexdigest()


def test_step_that_died_halfway_creates_no_file_twice(
    library: Library, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = archived(library, source, FILES)
    calls = {"left": 2}
    bring = extract._store_entry

    def dies(*args: Any) -> None:
        bring(*args)
        calls["left"] -= 1
        if calls["left"] == 0:
            raise WorkerLost("the sandbox is gone")

    monkeypatch.setattr(extract, "_store_entry", dies)
    request = library.submit("extract", {"file_id": file_id, "file_path": "/release/1"})
    library.run()
    library.cloud.clock.advance(3600)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()

    assert library.request(request["request_id"])["status"] == "completed"
    answer = library.cloud.http("GET", "/v1/files?limit=100", key=library.project.key).json()
    paths = sorted(file["file_path"] for file in answer["items"] if file["file_path"].startswith("/release/"))
    assert paths == sorted(f"/release/1/{name}" for name in FILES)


def test_archive_with_an_escaping_path_fails_and_names_it(library: Library, source: FileSource) -> None:
    done = extracted(library, archived(library, source, {"../../etc/cron.d/x": b"bad"}))
    assert (done["status"], done["error"]["code"]) == ("failed", "bad_archive")
    assert "../../etc/cron.d/x" in done["error"]["detail"]
    assert listed(library) == {}


def test_missing_or_unready_archive_is_refused_at_once(library: Library, source: FileSource) -> None:
    def asked(file_id: str) -> int:
        body = {"type": "extract", "payload": {"file_id": file_id, "file_path": "/x"}}
        return int(library.cloud.http("POST", "/v1/requests", json=body, key=library.project.key).status)

    source.files["/later.zip"] = Hosted(b"x")
    coming = library.ask(source.url("/later.zip"), **BIZ)["file_id"]
    assert (asked("file-none"), asked(coming)) == (404, 409)
