"""The step that uploads a file to the library and downloads it again."""

from __future__ import annotations

import os

from local.demo.guide import Guide, expect

MEGABYTE = 1024 * 1024


def upload_and_download(guide: Guide) -> str:
    source, copy = guide.home / "report.bin", guide.home / "report-copy.bin"
    source.write_bytes(os.urandom(5 * MEGABYTE))
    stored = guide.client.files.put(source, biz_id=2, app_id=3, file_path="/reports/report.bin")
    guide.tell(f"{stored['file_id']} is {stored['state']}, sha256 {stored['signature'][:16]}…")
    guide.client.files.fetch(stored["file_id"], copy)
    expect(copy.read_bytes() == source.read_bytes(), "the downloaded file differs from the uploaded one")
    return f"{source.stat().st_size // MEGABYTE} MB uploaded, verified, and downloaded again with the same bytes"
