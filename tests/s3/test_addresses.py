"""What names of hosts lead to, also while the resolver does not answer."""

import socket
import threading
from typing import Any

import pytest
import trio

from fastfuse.s3 import addresses as module
from fastfuse.s3.addresses import Addresses


class Resolver:
    """Stands in for that of the system, and waits before it answers, or fails, for as long as it is not `open`."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.error: OSError | None = None
        self.open = threading.Event()
        self.open.set()
        self.lookups = 0

    def getaddrinfo(self, host: bytes | str, port: int, *_: Any) -> list[Any]:  # noqa: ANN401
        if isinstance(host, str):
            raise socket.gaierror(socket.EAI_NONAME, "it is no number")  # trio asks for that first
        self.lookups += 1
        self.open.wait()
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in self.hosts]


async def hosts_of(addresses: Addresses) -> list[str]:
    return [found[4][0] for found in await addresses.find("s3.test", 80)]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver("10.0.0.1", "10.0.0.2", "10.0.0.3")
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    return resolver


async def test_an_answer_holds_while_the_resolver_fails(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses, now_s = Addresses(), 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    resolver.error = socket.gaierror(socket.EAI_AGAIN, "no answer")
    with pytest.raises(socket.gaierror):
        await addresses.find("s3.test", 80)
    resolver.error = None
    assert await hosts_of(addresses) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    resolver.error, resolver.lookups = socket.gaierror(socket.EAI_AGAIN, "no answer"), 0
    for _ in range(3):
        assert await hosts_of(addresses) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert resolver.lookups == 1
    with pytest.raises(socket.gaierror):
        await addresses.find("other.test", 80)
    resolver.error, resolver.hosts = None, ("10.0.0.4",)
    now_s += 60
    assert await hosts_of(addresses) == ["10.0.0.4"]


async def test_an_answer_holds_while_the_next_is_late(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LATE_S", 0.01)
    addresses = Addresses()
    await addresses.find("s3.test", 80)
    resolver.open.clear()
    resolver.hosts = ("10.0.0.4",)
    assert await hosts_of(addresses) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    resolver.open.set()
    with trio.fail_after(10):
        while await hosts_of(addresses) != ["10.0.0.4"]:
            await trio.lowlevel.checkpoint()
    assert resolver.lookups == 2


async def test_an_address_to_avoid_is_last_for_a_minute(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses, now_s = Addresses(), 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    addresses.avoid("10.0.0.1")
    assert await hosts_of(addresses) == ["10.0.0.2", "10.0.0.3", "10.0.0.1"]
    now_s += 1
    addresses.avoid("10.0.0.2")
    assert await hosts_of(addresses) == ["10.0.0.3", "10.0.0.1", "10.0.0.2"]
    now_s += 60
    assert await hosts_of(addresses) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
