"""Answers that are not the requested range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.ingest.fetch import Ranged, SourceChanged, chunks_until_break
from tidegate.ingest.model import Source

SOURCE = Source(1000, '"v1"', ranges=True)


def answer(content_range: str) -> Any:
    return SimpleNamespace(status=206, headers={"content-range": content_range}, raise_for_status=lambda: None)


@pytest.mark.parametrize("content_range", ["bytes 100-199/1000", "bytes 100-150/1000"], ids=["whole", "shorter"])
def test_requested_range_or_its_beginning_is_taken(content_range: str) -> None:
    with Ranged(nullcontext(answer(content_range)), 100, 199, SOURCE) as stream:
        assert stream.status == 206


@pytest.mark.parametrize("content_range", ["bytes 99-199/1000", "bytes 100-200/1000", "bytes 100-999/1000", ""])
def test_another_range_is_refused(content_range: str) -> None:
    with pytest.raises(SourceChanged), Ranged(nullcontext(answer(content_range)), 100, 199, SOURCE):
        pass


def test_answer_without_end_is_refused_at_the_first_byte_too_many() -> None:
    sent = []

    def chunks(_size: int) -> Iterator[bytes]:
        for number in count():
            sent.append(number)
            yield b"x" * 60

    stream: Any = SimpleNamespace(chunks=chunks)
    taken = chunks_until_break(stream, SOURCE, 150)

    assert [len(next(taken)), len(next(taken))] == [60, 60]
    with pytest.raises(SourceChanged, match="150"):
        next(taken)
    assert len(sent) == 3
