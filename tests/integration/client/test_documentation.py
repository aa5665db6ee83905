"""The examples of the client's README run against the stack on moto."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Handler, serve
from tests.support.ingest.sources import FileSource, Hosted, file_source
from tests.support.moto.cloud import MotoCloud, Project

PAGE = Path(__file__).resolve().parents[3] / "layers" / "client" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FEED = b'<rss><channel><item><enclosure url="/one.mp3"/></item><item><enclosure url="/x.txt"/></item></channel></rss>'


@pytest.fixture
def api(cloud: MotoCloud) -> Iterator[str]:
    """Serves the API of the cloud over HTTP."""

    def answer(handler: Handler) -> None:
        body = handler.body().decode() or None
        key = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        idempotency = handler.headers.get("Idempotency-Key")
        headers = {"idempotency-key": idempotency} if idempotency else {}
        reply = cloud.http(handler.command, handler.path, key=key, body=body, headers=headers)
        handler.answer(reply.status, reply.body)

    with serve(answer) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def feed() -> Iterator[FileSource]:
    with file_source() as source:
        source.files |= {"/feed": Hosted(FEED, content_type="text/xml"), "/tide.bin": Hosted(b"tide")}
        yield source


def test_examples_of_the_client_page_run(
    api: str, project: Project, feed: FileSource, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"api_url": api, "key": project.key}
    names |= {"source_url": feed.url("/tide.bin"), "feed_url": feed.url("/feed")}

    for example in EXAMPLES:
        exec(compile(example, str(PAGE), "exec"), names)

    printed = capsys.readouterr().out
    assert len(EXAMPLES) == 6, "those that need the whole stack are in tests/e2e/cli/test_installed.py"
    assert "/in/moon.txt pending" in printed
    assert "rss ['/pod/one.mp3']" in printed
    assert "[None]" in printed, "the schedule of batches"
    assert "not_found 404" in printed
    assert "pending 5" in printed
