"""Host names whose look-up hangs: which callers wait for them, and which do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.http_servers import serve
from tests.support.patience import idle_clock
from tidegate.errors import FetchTimeout, NotSent
from tidegate.http.client import SafeHttp
from tidegate.http.guard import LOOKUPS_PER_PROJECT, NameLookups
from tidegate.http.model import Limits

MANY = 12


class Dns:
    """Look-ups of names that begin with `hang` end only when the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host.startswith("hang"):
            self.over.wait(20)
        if host == "nowhere":
            raise socket.gaierror("no such name")
        return ["127.0.0.1"]


@pytest.fixture
def dns() -> Iterator[Dns]:
    made = Dns()
    yield made
    made.over.set()


def hang(http: SafeHttp, project_id: str) -> None:
    def fetch(number: int) -> None:
        with pytest.raises((FetchTimeout, NotSent)):
            http.send("GET", f"http://hang{number}.test/", limits=Limits(connect=0.3), project_id=project_id)

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(MANY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_hanging_names_of_one_project_do_not_hold_up_another(dns: Dns) -> None:
    http = SafeHttp(resolver=dns)
    with serve(lambda request: request.answer(200, b"x")) as port:
        hang(http, "p-bad")
        began = idle_clock()
        url = f"http://good.test:{port}/"
        reply = http.send("GET", url, allow_private=True, limits=Limits(connect=0.5), project_id="p-good")
    assert (reply.status, idle_clock() - began < 0.4) == (200, True)


def test_slow_names_of_a_project_do_not_blame_its_other_hosts(dns: Dns) -> None:
    http = SafeHttp(resolver=dns)
    hang(http, "p-bad")
    with pytest.raises(NotSent, match="still being resolved"):
        http.send("GET", "http://good.test/", limits=Limits(connect=0.2), project_id="p-bad")
    assert "good.test" not in dns.asked


def test_name_that_hangs_takes_one_thread_however_often_it_is_asked(dns: Dns) -> None:
    names = NameLookups(dns)
    for _ in range(LOOKUPS_PER_PROJECT + 2):
        with pytest.raises(FetchTimeout, match=r"hang\.test"):
            names.find("hang.test", 80, 0.02, "p")
    assert dns.asked == ["hang.test"]
    assert names.find("good.test", 80, 1, "p") == ["127.0.0.1"]


def test_look_up_that_ends_makes_room(dns: Dns) -> None:
    names = NameLookups(dns)
    for number in range(LOOKUPS_PER_PROJECT):
        with pytest.raises(FetchTimeout):
            names.find(f"hang{number}", 80, 0.01, "p")
    dns.over.set()
    assert names.find("good.test", 80, 2, "p") == ["127.0.0.1"]


def test_name_without_an_address_is_looked_up_again_the_next_time(dns: Dns) -> None:
    names = NameLookups(dns)
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            names.find("nowhere", 80, 1, "p")
    assert dns.asked == ["nowhere"] * 2
