import logging

import pytest

from fastfuse.errors import (
    AccessError,
    ObjectChangedError,
    ObjectDeniedError,
    ServiceError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.store.memory import MemoryStore
from fastfuse.store.router import RoutingReader, _large_gets
from tests.fakes import CountingReader, FailingReader


class Two:
    """A router over two wrapped memory stores; the fast one fails as told."""

    def __init__(self, error: Exception | None = None, *, times: int = 1) -> None:
        self.store = MemoryStore({"a": b"data", "b": b"more"})
        self.fast = CountingReader(
            FailingReader(self.store, lambda: error or ValueError(), times=times if error else 0)
        )
        self.general = CountingReader(self.store)
        self.made: list[str] = []
        self.reader = RoutingReader(fast=lambda bucket: self.fast, general=self._make_general)

    def _make_general(self, bucket: str) -> CountingReader:
        self.made.append(bucket)
        return self.general

    async def read(self, key: str) -> bytes:
        return bytes(await self.reader.get_range(self.store.ref(key), 0, 4))


@pytest.mark.parametrize(("limit_mib", "gets"), [(0, None), (1, 8), (72, 8), (192, 16), (448, 37)])
def test_a_small_memory_allows_few_large_gets(limit_mib: int, gets: int | None) -> None:
    assert _large_gets(limit_mib << 20) == gets


def unsuitable(*, whole_server: bool) -> StoreUnsuitableError:
    return StoreUnsuitableError("reason", whole_server=whole_server)


async def test_the_fast_reader_serves_and_the_general_one_is_not_even_made() -> None:
    two = Two()
    assert await two.read("a") == b"data"
    assert two.made == []


async def test_an_unsuitable_key_is_served_by_the_general_reader_and_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    two = Two(unsuitable(whole_server=False), times=2)
    assert [await two.read(key) for key in ("a", "a", "b")] == [b"data", b"data", b"more"]
    assert len(two.general.calls) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Reading some objects with the slower client, 'a' first: reason"
    ]


async def test_an_unsuitable_server_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    two = Two(unsuitable(whole_server=True))
    assert [await two.read(key) for key in ("a", "b", "a")] == [b"data", b"more", b"data"]
    assert len(two.fast.calls) == 1
    assert two.made == ["bucket"]
    assert [record.getMessage() for record in caplog.records] == ["Reading 'bucket' with the slower client: reason"]


async def test_any_other_read_error_passes_without_a_second_request() -> None:
    two = Two(ObjectChangedError("changed"))
    with pytest.raises(ObjectChangedError, match="changed"):
        await two.read("a")
    assert two.general.calls == []


async def test_lost_credentials_are_the_reads_denial() -> None:
    two = Two(AccessError("expired", hint="sign in"))
    with pytest.raises(ObjectDeniedError, match="'a' could not be read: expired") as caught:
        await two.read("a")
    assert caught.value.hint == "sign in"


async def test_a_lost_service_is_the_reads_unavailability() -> None:
    two = Two(ServiceError("unreachable"))
    with pytest.raises(UnavailableError, match="unreachable"):
        await two.read("a")
