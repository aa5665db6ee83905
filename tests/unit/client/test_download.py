"""Downloads resume, are verified, and never leave a partial file."""

from __future__ import annotations

import hashlib
import io
import random
from pathlib import Path

import pytest
import urllib3

from tests.unit.client.fakes import Store, sha256
from tidegate_client.download import Cancelled, ResumingDownload, download_to
from tidegate_client.errors import ChecksumMismatch, LinkExpired, TransferError
from tidegate_client.uploads import Progress, upload

CONTENT = random.Random(7).randbytes(1_000_003)


@pytest.fixture
def pool() -> urllib3.PoolManager:
    return urllib3.PoolManager()


@pytest.fixture
def stored(store: Store) -> Store:
    store.objects["f"] = CONTENT
    return store


def fetch(pool: urllib3.PoolManager, store: Store, to: Path, signature: str | None = None) -> None:
    wanted = signature or sha256(CONTENT)
    download_to(pool, lambda _refused: store.link("f"), to, size=len(CONTENT), signature=wanted)


def test_cut_connection_is_resumed_where_it_was_cut(pool: urllib3.PoolManager, stored: Store, tmp_path: Path) -> None:
    stored.cuts = [300_000, 0, 200_000]

    fetch(pool, stored, tmp_path / "f")

    assert (tmp_path / "f").read_bytes() == CONTENT
    assert stored.requests == [("f", None), ("f", "bytes=300000-"), ("f", "bytes=300000-"), ("f", "bytes=500000-")]
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_store_that_ignores_ranges_still_gives_the_right_bytes(
    pool: urllib3.PoolManager, stored: Store, tmp_path: Path
) -> None:
    stored.cuts, stored.supports_ranges = [300_000], False

    fetch(pool, stored, tmp_path / "f")

    assert (tmp_path / "f").read_bytes() == CONTENT


def test_part_file_of_an_earlier_run_is_resumed(pool: urllib3.PoolManager, stored: Store, tmp_path: Path) -> None:
    (tmp_path / ".f.tidegate-part").write_bytes(CONTENT[:400_000])

    fetch(pool, stored, tmp_path / "f")

    assert (tmp_path / "f").read_bytes() == CONTENT
    assert stored.requests == [("f", "bytes=400000-")]


@pytest.mark.parametrize("leftover", [b"another file's bytes", CONTENT + b"more", b"x" * len(CONTENT)])
def test_part_file_with_wrong_bytes_is_downloaded_again(
    pool: urllib3.PoolManager, stored: Store, tmp_path: Path, leftover: bytes
) -> None:
    (tmp_path / ".f.tidegate-part").write_bytes(leftover)

    fetch(pool, stored, tmp_path / "f")

    assert (tmp_path / "f").read_bytes() == CONTENT


def test_wrong_content_is_refused_and_leaves_no_file(pool: urllib3.PoolManager, stored: Store, tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch):
        fetch(pool, stored, tmp_path / "f", signature="0" * 64)

    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("signature", [sha256(CONTENT), None])
def test_two_runs_at_once_leave_the_whole_file_each(
    pool: urllib3.PoolManager, stored: Store, tmp_path: Path, signature: str | None
) -> None:
    to = tmp_path / "f"

    def run(on_progress: Progress | None = None) -> None:
        link = stored.link("f")
        download_to(pool, lambda _refused: link, to, size=len(CONTENT), signature=signature, on_progress=on_progress)
        assert to.read_bytes() == CONTENT

    def start_another(done: int, _total: int | None) -> None:
        if done < len(CONTENT) and not to.exists():
            run()

    run(start_another)

    assert len(stored.requests) == 2
    assert list(tmp_path.iterdir()) == [to]


def test_run_that_fails_without_a_digest_leaves_nothing(
    pool: urllib3.PoolManager, stored: Store, tmp_path: Path
) -> None:
    with pytest.raises(ChecksumMismatch):
        download_to(pool, lambda _refused: stored.link("f"), tmp_path / "f", size=len(CONTENT) - 1)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("announced", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_size_other_than_announced_is_refused(pool: urllib3.PoolManager, stored: Store, announced: int) -> None:
    download = ResumingDownload(pool, io.BytesIO(), size=announced)

    with pytest.raises(ChecksumMismatch):
        download.run(lambda _refused: stored.link("f"))


def test_expired_url_is_replaced_and_the_download_continues(pool: urllib3.PoolManager, stored: Store) -> None:
    file = io.BytesIO()
    old = stored.link("f")
    stored.cuts = [300_000]
    given: list[str | None] = []

    def link(refused: str | None) -> str:
        given.append(refused)
        return stored.link("f") if refused else old

    def expire(_done: int, _total: int | None) -> None:
        stored.valid_token = "2"

    ResumingDownload(pool, file, size=len(CONTENT), on_progress=expire).run(link)

    assert file.getvalue() == CONTENT
    assert given == [None, old]


def test_download_without_bytes_fails_after_the_stall_limit(pool: urllib3.PoolManager, stored: Store) -> None:
    stored.statuses = [503] * 50
    download = ResumingDownload(pool, io.BytesIO(), size=1, patience=0.3, sleep=lambda _s: None)
    moment = iter(range(10_000))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidegate_client.download.time.monotonic", lambda: next(moment) / 10)
        with pytest.raises(TransferError, match="503"):
            download.run(lambda _refused: stored.link("f"))


def test_missing_object_is_not_retried(pool: urllib3.PoolManager, store: Store) -> None:
    with pytest.raises(TransferError) as raised:
        ResumingDownload(pool, io.BytesIO()).run(lambda _refused: store.link("absent"))

    assert raised.value.status == 404
    assert len(store.requests) == 1


def test_cancelled_download_keeps_its_bytes(pool: urllib3.PoolManager, stored: Store) -> None:
    file = io.BytesIO()
    seen: list[int] = []
    download = ResumingDownload(
        pool, file, on_progress=lambda done, _total: seen.append(done), cancelled=lambda: len(seen) == 2
    )

    with pytest.raises(Cancelled):
        download.run(lambda _refused: stored.link("f"))

    assert CONTENT.startswith(file.getvalue())
    assert file.getvalue()


def test_empty_file_needs_no_request(pool: urllib3.PoolManager, store: Store) -> None:
    digest = ResumingDownload(pool, io.BytesIO(), size=0).run(lambda _refused: store.link("f"))

    assert digest == hashlib.sha256().hexdigest()
    assert store.requests == []


def test_upload_is_sent_again_after_a_5xx(pool: urllib3.PoolManager, store: Store, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(CONTENT)
    store.statuses = [500]
    seen: list[int] = []

    upload(pool, store.link("f"), source, on_progress=lambda done, _total: seen.append(done))

    assert store.objects["f"] == CONTENT
    assert seen[-1] == len(CONTENT)


@pytest.mark.parametrize("statuses", [[500, 412], [412], [409, 200]])
def test_upload_that_exists_already_counts_as_done(
    pool: urllib3.PoolManager, store: Store, tmp_path: Path, statuses: list[int]
) -> None:
    """If the answer of the first attempt is lost, the second is refused by `If-None-Match: *`."""
    source = tmp_path / "f"
    source.write_bytes(CONTENT)
    store.statuses = list(statuses)

    upload(pool, store.link("f"), source, headers={"If-None-Match": "*"})

    assert [headers["if-none-match"] for headers in store.put_headers] == ["*"] * len(statuses)


def test_upload_to_an_expired_url_raises_link_expired(pool: urllib3.PoolManager, store: Store, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"x")
    store.statuses = [403]

    with pytest.raises(LinkExpired):
        upload(pool, store.link("f"), source)


def test_name_of_255_bytes_can_be_downloaded(pool: urllib3.PoolManager, stored: Store, tmp_path: Path) -> None:
    name = "海" * 85

    fetch(pool, stored, tmp_path / name)

    assert [path.name for path in tmp_path.iterdir()] == [name]
