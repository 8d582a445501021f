"""Small ranges by one client, large ones by another, and what is left where one of them is unsuitable."""

import logging
from collections.abc import Callable

import pytest
import trio

from fastfuse.errors import ObjectChangedError, StoreUnsuitableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.memory import MemoryStore
from fastfuse.store.sized import SizedRangeReader
from tests.fakes import CountingReader, FailingReader


class _Prepared(CountingReader):
    """One that has nothing to prepare, but may be unable to."""

    def __init__(self, reader: FailingReader, error: Exception | None) -> None:
        super().__init__(reader)
        self._error = error
        self.prepared = 0

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        await trio.lowlevel.checkpoint()  # as a request is one
        return await super().get_range(ref, start, end)

    async def prepare(self) -> None:
        self.prepared += 1
        if self._error is not None:
            raise self._error


class Two:
    """Up to two bytes are small, unless it is said otherwise."""

    def __init__(
        self, *, small: Exception | None = None, large: Exception | None = None, most_small_bytes: int | None = 2
    ) -> None:
        self.store = MemoryStore({"a": b"data"})
        self.small, self.large = self._client(small), self._client(large)
        self.reader = SizedRangeReader(self.small, self.large, most_small_bytes=most_small_bytes)

    def _client(self, error: Exception | None) -> _Prepared:
        fails: Callable[[], Exception] = lambda: error or ValueError()  # noqa: E731
        return _Prepared(FailingReader(self.store, fails, times=100 if error else 0), error)

    async def read(self, size_bytes: int) -> bytes:
        return bytes(await self.reader.get_range(self.store.ref("a"), 0, size_bytes))

    @property
    def calls(self) -> tuple[int, int]:
        return len(self.small.calls), len(self.large.calls)


def unsuitable(*, whole_server: bool = True) -> StoreUnsuitableError:
    return StoreUnsuitableError("reason", whole_server=whole_server)


async def test_each_size_has_its_client() -> None:
    two = Two()
    assert [await two.read(size) for size in (1, 2, 3, 4)] == [b"d", b"da", b"dat", b"data"]
    assert two.calls == (2, 2)


async def test_what_the_small_client_cannot_reach_is_read_by_the_large_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    two = Two(small=unsuitable())
    assert [await two.read(1) for _ in range(3)] == [b"d"] * 3
    assert two.calls == (1, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "Reading 'bucket' with one client, whatever the size: reason"
    ]


async def test_what_the_large_client_cannot_reach_is_left_to_a_third_and_small_ranges_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    two = Two(large=unsuitable())
    for _ in range(3):
        with pytest.raises(StoreUnsuitableError) as caught:
            await two.read(3)
        assert not caught.value.whole_server
        assert await two.read(2) == b"da"
    assert two.calls == (3, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Reading large ranges of 'bucket' with the slower client: reason"
    ]


@pytest.mark.parametrize("size_bytes", [1, 3])
async def test_where_neither_is_suitable_nothing_is(size_bytes: int) -> None:
    two = Two(small=unsuitable(), large=unsuitable())
    with pytest.raises(StoreUnsuitableError):
        await two.read(3)
    with pytest.raises(StoreUnsuitableError) as caught:
        await two.read(1)
    assert caught.value.whole_server
    with pytest.raises(StoreUnsuitableError) as caught:
        await two.read(size_bytes)
    assert caught.value.whole_server
    assert two.calls == (1, 1)


async def test_one_object_that_the_small_client_cannot_read_is_read_by_the_large_one() -> None:
    two = Two(small=unsuitable(whole_server=False))
    assert [await two.read(1) for _ in range(2)] == [b"d"] * 2
    assert two.calls == (2, 2)


@pytest.mark.parametrize("error", [unsuitable(whole_server=False), ObjectChangedError("changed")])
async def test_what_concerns_one_object_changes_nothing_for_others(error: Exception) -> None:
    two = Two(large=error)
    for _ in range(2):
        with pytest.raises(type(error)):
            await two.read(3)
    assert two.calls == (0, 2)
    two = Two(small=ObjectChangedError("changed"))
    for _ in range(2):
        with pytest.raises(ObjectChangedError):
            await two.read(1)
    assert two.calls == (2, 0)


async def test_reads_that_fail_side_by_side_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    two = Two(small=unsuitable(), large=unsuitable())

    async def read(size_bytes: int) -> None:
        with pytest.raises(StoreUnsuitableError):
            await two.read(size_bytes)

    async with trio.open_nursery() as nursery:
        for size_bytes in (3, 3, 3, 1, 1, 1):
            nursery.start_soon(read, size_bytes)
    assert len([record for record in caplog.records if "large ranges" in record.getMessage()]) <= 1
    assert len([record for record in caplog.records if "with one client" in record.getMessage()]) == 1


async def test_both_are_prepared_and_what_is_unsuitable_says_so_when_it_is_read() -> None:
    two = Two(small=unsuitable(), large=unsuitable())
    await two.reader.prepare()
    assert (two.small.prepared, two.large.prepared) == (1, 1)


async def test_where_all_is_small_the_large_client_is_for_what_the_other_cannot_reach() -> None:
    two = Two(most_small_bytes=None)
    await two.reader.prepare()
    assert await two.read(4) == b"data"
    assert (two.large.prepared, two.calls) == (0, (1, 0))
    two = Two(most_small_bytes=None, small=unsuitable())
    await two.reader.prepare()
    assert await two.read(4) == b"data"
    assert (two.large.prepared, two.calls) == (1, (1, 1))
