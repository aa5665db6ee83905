from __future__ import annotations

import threading
from ipaddress import ip_address

import pytest

from tidegate.app import App
from tidegate.errors import FetchTimeout, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.guard import AddressGuard, is_private_network, is_public
from tidegate.settings import Settings

REFUSED = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(UrlNotAllowed) as refused:
        SafeHttp(resolver=lambda host, port: [address]).check_url("https://files.example/a")
    assert (refused.value.code, refused.value.status, refused.value.retryable) == ("url_not_allowed", 422, False)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::1"])
def test_public_address_passes(address: str) -> None:
    SafeHttp(resolver=lambda host, port: [address]).check_url("https://files.example/a")


def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    http = SafeHttp(resolver=lambda host, port: ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(UrlNotAllowed, match=r"10\.0\.0\.1"):
        http.check_url("https://files.example/a")


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "100.64.0.1", "::1", "fd12::1", "8.8.8.8"])
def test_project_that_allows_private_urls_reaches_its_networks(address: str) -> None:
    assert is_private_network(ip_address(address))
    SafeHttp(resolver=lambda host, port: [address]).check_url("http://inside/", allow_private=True)


NEVER = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "168.63.129.16",
    "192.0.0.192",
    "100.100.100.200",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fe80::1",
    "0.0.0.0",
    "0.0.0.1",
    "224.0.0.1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "::ffff:0.0.0.0",
    "2002:a9fe:a9fe::",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.170.2",
    "2001:0:a9fe:a9fe::1",
    "2001::5601:5601",
    "2a00:1450::5efe:169.254.169.254",
]
DISGUISED = [
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "64:ff9b::10.0.0.1",
    "2001::f5ff:fffe",
]


@pytest.mark.parametrize("address", [*NEVER, *DISGUISED])
def test_metadata_is_out_of_reach_even_when_private_urls_are_allowed(address: str) -> None:
    with pytest.raises(UrlNotAllowed):
        SafeHttp(resolver=lambda host, port: [address]).check_url("http://inside/", allow_private=True)


@pytest.mark.parametrize("address", NEVER)
def test_metadata_is_out_of_reach_of_the_allow_list_too(address: str) -> None:
    http = SafeHttp(resolver=lambda host, port: [address], allowed_hosts=["files.internal"])
    with pytest.raises(UrlNotAllowed):
        http.check_url("http://files.internal/")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.255.0.9", "::1", "::ffff:127.0.0.1", "::127.0.0.1"])
@pytest.mark.parametrize("port", [9001, 9009])
@pytest.mark.parametrize("allowed", [["inside"], []])
def test_runtime_api_is_closed_on_every_address_of_the_machine(address: str, port: int, allowed: list[str]) -> None:
    http = SafeHttp(resolver=lambda host, port: [address], allowed_hosts=allowed, refused_endpoints=["127.0.0.1:9009"])
    with pytest.raises(UrlNotAllowed):
        http.check_url(f"http://inside:{port}/2018-06-01/runtime/invocation/next", allow_private=True)


def test_runtime_api_on_another_address_is_closed_too() -> None:
    http = SafeHttp(resolver=lambda host, port: ["10.9.9.9"], refused_endpoints=["10.9.9.9:8080"])
    http.check_url("http://inside:8081/", allow_private=True)
    with pytest.raises(UrlNotAllowed):
        http.check_url("http://inside:8080/", allow_private=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_is_no_private_network_in_lambda(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    url = f"http://[{address}]:8000/" if ":" in address else f"http://{address}:8000/"
    with pytest.raises(UrlNotAllowed):
        App(Settings()).http.check_url(url, allow_private=True)
    App(Settings(url_allow_list=f" ,{address}")).http.check_url(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    App(Settings()).http.check_url(url, allow_private=True)


def test_lambda_runtime_endpoint_is_refused_even_with_private_urls() -> None:
    http = SafeHttp(refused_endpoints=["127.0.0.1:9001"])
    http.check_url("http://127.0.0.1:9002/", allow_private=True)
    with pytest.raises(UrlNotAllowed):
        http.check_url("http://127.0.0.1:9001/2018-06-01/runtime/invocation/next", allow_private=True)


def test_host_of_the_allow_list_may_be_private() -> None:
    http = SafeHttp(resolver=lambda host, port: ["10.0.0.1"], allowed_hosts=["Files.Internal"])
    http.check_url("http://files.internal./x")
    with pytest.raises(UrlNotAllowed):
        http.check_url("http://other.internal/x")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/latest",
        "http://0/",
    ],
)
def test_other_spellings_of_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(UrlNotAllowed):
        SafeHttp().check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://files.example/a",
        "gopher://files.example/",
        "//files.example/a",
        "files.example/a",
        "http://",
        "http:///path",
        "http://user:secret@files.example/",
        "http://files.example/a b",
        "http://files.example/\r\nX: 1",
        "http://[fe80::1%25eth0]/",
        "http://files.example:99999/",
        "",
    ],
)
def test_url_that_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(UrlNotAllowed):
        SafeHttp(resolver=lambda host, port: ["8.8.8.8"]).check_url(url)


def test_slow_resolver_does_not_hold_the_caller() -> None:
    release = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        release.wait(5)
        return ["8.8.8.8"]

    try:
        with pytest.raises(FetchTimeout):
            AddressGuard(slow).addresses("files.example", 80, allow_private=False, timeout=0.05)
    finally:
        release.set()
