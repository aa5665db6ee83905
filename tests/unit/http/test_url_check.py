"""Checks of a request's URLs: how long they hold it, and what they refuse without a name server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.patience import idle_clock
from tidegate.errors import UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.guard import LOOKUPS_PER_PROJECT, SKIPPED_SECONDS, AddressGuard, UrlCheck


class Dns:
    """Look-ups of names that begin with `hang` end only when the test is over; all others are private."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host.startswith("hang"):
            self.over.wait(20)
        return ["10.0.0.1"]


@pytest.fixture
def dns() -> Iterator[Dns]:
    made = Dns()
    yield made
    made.over.set()


def hanging(count: int) -> list[str]:
    return [f"http://hang{number}.test/" for number in range(count)]


def refused(http: SafeHttp, *urls: str, seconds: float = 0.2, project_id: str = "p") -> list[str]:
    return list(http.refused_urls(urls, allow_private=False, project_id=project_id, seconds=seconds))


def test_all_urls_of_a_request_share_one_time(dns: Dns) -> None:
    http, began = SafeHttp(resolver=dns), idle_clock()
    assert refused(http, *hanging(100)) == []
    # One after another they would take 20 s.
    assert idle_clock() - began < 5
    assert len(dns.asked) == LOOKUPS_PER_PROJECT


def test_private_name_among_hanging_ones_is_refused(dns: Dns) -> None:
    http = SafeHttp(resolver=dns)
    assert refused(http, *hanging(3), "http://private.test/", seconds=1) == ["http://private.test/"]


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://127.1/", "http://[::1]/", "ftp://files.test/"])
def test_address_or_bad_scheme_is_refused_while_names_hang(dns: Dns, url: str) -> None:
    http = SafeHttp(resolver=dns)
    refused(http, *hanging(LOOKUPS_PER_PROJECT), seconds=0.02)
    began = idle_clock()
    assert refused(http, "http://hang-too.test/", url, seconds=20) == [url]
    assert idle_clock() - began < 10
    assert "hang-too.test" not in dns.asked


def test_slow_name_ends_further_look_ups_of_its_project(dns: Dns) -> None:
    now = [0.0]
    check = UrlCheck(AddressGuard(dns), lambda: now[0])

    def private_is_refused(project_id: str) -> bool:
        return bool(check.refusals(["http://private.test/"], allow_private=False, project_id=project_id, seconds=5))

    def slow(host: str, port: int) -> list[str]:
        now[0] += 4
        return ["8.8.8.8"]

    assert private_is_refused("p")
    check._guard._names._resolver = slow
    check.refusals(["http://slow.test/"], allow_private=False, project_id="p", seconds=5)
    check._guard._names._resolver = dns

    assert (private_is_refused("p"), private_is_refused("other")) == (False, True)
    now[0] += SKIPPED_SECONDS
    assert private_is_refused("p")


def test_private_name_that_passed_the_check_is_refused_when_connecting(dns: Dns) -> None:
    http = SafeHttp(resolver=dns)
    refused(http, "http://hang.test/", seconds=0.02)
    assert refused(http, "http://private.test/") == []
    with pytest.raises(UrlNotAllowed):
        http.send("GET", "http://private.test/", project_id="p")
