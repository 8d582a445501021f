"""Gets that a tier begins without a task: claimed, kept and shared as those of `get`, or left to it."""

import errno
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.cache import catalog, claims, shared, writer
from fastfuse.cache.reader import CachedReader
from fastfuse.errors import IntegrityError
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader
from tests.cache.node import MIB, CountingStore, content, settings_of, tier

BIG = content("big", 4 * MIB)


class Threads:
    """Stands in for the threads, which get ranges of one object: what is begun ends when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.store, self.settings, self.counters = CountingStore({"big": BIG}), settings_of(directory), Counters()
        self.ref = self.store.ref("big")
        # The ranges that were asked for, begun or not, and the bytes of those that ended.
        self.asked: list[tuple[int, int]] = []
        self.ended: list[bytes | None] = []
        self.is_refusing = self.is_failing = False
        self._begun: list[tuple[int, int, Callable[[Buffer | None], None]]] = []

    def tier(self, queue_bytes: int = 64 * MIB) -> AbstractAsyncContextManager[RangeReader]:
        return tier(self.store, self.settings, self.counters, queue_bytes=queue_bytes)

    def begins(self, reader: RangeReader, start: int, end: int) -> bool:
        assert isinstance(reader, CachedReader)
        return reader.begin(
            self._begin, self.ref, start, end, lambda data: self.ended.append(None if data is None else bytes(data))
        )

    def end(self, *, is_right: bool = True) -> None:
        """End what was begun last of what is under way."""
        start, end, done = self._begun.pop()
        done(memoryview(BIG)[start:end] if is_right else None)

    def counted_bytes(self, what: str) -> int:
        return self.counters.get("fastfuse_cache_bytes", what)

    def _begin(self, _: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        self.asked.append((start, end))
        if self.is_failing:
            raise MemoryError
        if not self.is_refusing:
            self._begun.append((start, end, done))
        return not self.is_refusing


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path / "cache")


async def fail() -> None:
    raise IntegrityError("the checksum is wrong")


async def test_what_is_begun_is_kept_and_nobody_else_fetches_it(threads: Threads) -> None:
    got = list[bytes]()

    async def read() -> None:
        got.append(bytes(await other.get(threads.ref, 0, MIB)))

    async with threads.tier() as one, threads.tier() as other, trio.open_nursery() as nursery:
        assert threads.begins(one, 0, MIB)
        for reader in (one, other):
            assert not threads.begins(reader, 0, MIB)
            assert not threads.begins(reader, MIB // 2, 2 * MIB)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        threads.end()
    assert got == threads.ended == [BIG[:MIB]]
    assert threads.counted_bytes("written") == MIB
    async with threads.tier() as later:
        assert not threads.begins(later, 0, MIB)
        assert bytes(await later.get(threads.ref, 0, MIB)) == BIG[:MIB]
    assert threads.asked == [(0, MIB)]
    assert threads.store.fetched == []


@pytest.mark.parametrize("outcome", ["in vain", "refused", "raises", "no room in the queue"])
async def test_what_is_not_kept_is_claimed_no_longer(outcome: str, threads: Threads) -> None:
    async with threads.tier(queue_bytes=MIB) as one, threads.tier() as other:
        if outcome == "raises":
            threads.is_failing = True
            with pytest.raises(MemoryError):
                threads.begins(one, 0, 2 * MIB)
        else:
            threads.is_refusing = outcome == "refused"
            assert threads.begins(one, 0, 2 * MIB) != threads.is_refusing
            if not threads.is_refusing:
                threads.end(is_right=outcome == "no room in the queue")
        threads.is_refusing = threads.is_failing = False
        for reader in (one, other):
            assert threads.begins(reader, 0, 2 * MIB)
            threads.end(is_right=False)
    assert threads.ended[:-2] == {"in vain": [None], "no room in the queue": [BIG[: 2 * MIB]]}.get(outcome, [])
    assert threads.counted_bytes("skipped") == (2 * MIB if outcome == "no room in the queue" else 0)
    assert threads.counted_bytes("written") == 0


async def test_what_is_not_worth_keeping_is_begun_unclaimed(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.Writer, "takes", lambda *_: False)
    async with threads.tier() as one, threads.tier() as other:
        for reader in (one, other):
            assert threads.begins(reader, 0, MIB)
        for _ in range(2):
            threads.end()
    assert threads.ended == 2 * [BIG[:MIB]]
    assert (threads.counted_bytes("declined"), threads.counted_bytes("written")) == (2 * MIB, 0)


async def test_what_is_unusual_is_left_to_get(threads: Threads) -> None:
    """That is a range of which something is kept, and an object that had not its checksum."""
    async with threads.tier() as reader:
        await reader.get(threads.ref, MIB - 1, MIB + 1)
    async with threads.tier() as reader:
        for start, end in ((0, MIB), (MIB, 2 * MIB), (0, len(BIG))):
            assert not threads.begins(reader, start, end)
        await reader.get(threads.ref, 2 * MIB, 3 * MIB)  # no claim is left
        assert threads.begins(reader, 3 * MIB, 4 * MIB)
        threads.end(is_right=False)
        threads.store.hold = fail
        with pytest.raises(IntegrityError):
            await reader.get(threads.ref, 0, 1)
        assert not threads.begins(reader, 3 * MIB, 4 * MIB)
    assert threads.asked == [(3 * MIB, 4 * MIB)]


async def test_nothing_is_kept_of_what_was_under_way_when_its_object_proved_wrong(threads: Threads) -> None:
    threads.store.hold = fail
    async with threads.tier() as reader:
        assert threads.begins(reader, 0, MIB)
        with pytest.raises(IntegrityError):
            await reader.get(threads.ref, 3 * MIB, 4 * MIB)
        threads.end()
    assert threads.ended == [BIG[:MIB]]
    assert threads.counted_bytes("written") == 0


async def test_a_tier_that_is_left_alone_claims_nothing(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    async with threads.tier() as one, threads.tier() as other:
        with monkeypatch.context() as patched:
            patched.setattr(catalog.Index, "find", fail)
            assert not threads.begins(other, 0, MIB)
        assert threads.counters.get("fastfuse_cache_failures", "index") == 1
        assert threads.begins(one, 0, MIB)  # no claim is left
        assert threads.begins(other, 0, MIB)
        threads.end()
        threads.end(is_right=False)
    assert threads.counted_bytes("written") == 0
    assert threads.ended == [BIG[:MIB], None]


@pytest.mark.parametrize("is_worth_it", [False, True])
async def test_a_claim_that_cannot_be_released_stops_no_get(
    is_worth_it: bool, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system does not let it go."""
    set_lock = shared.set_lock

    def fail(fd: int, is_claim: bool, object_id: int, start: int, end: int) -> None:
        if not is_claim:
            raise OSError(errno.EIO, "the disk is gone")
        set_lock(fd, is_claim, object_id, start, end)

    monkeypatch.setattr(claims, "set_lock", fail)
    monkeypatch.setattr(writer.Writer, "takes", lambda *_: is_worth_it)
    async with threads.tier() as reader:
        for is_right in (False, True):
            assert threads.begins(reader, 0, MIB)
            threads.end(is_right=is_right)
    assert threads.ended == [None, BIG[:MIB]]


async def test_a_range_that_is_begun_counts_once_as_asked_for(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(writer.Writer, "ask", lambda _, __, size_bytes: asked.append(size_bytes))
    async with threads.tier() as reader:
        assert threads.begins(reader, 0, MIB)
        threads.is_refusing = True
        assert not threads.begins(reader, MIB, 3 * MIB)
        await reader.get(threads.ref, MIB, 3 * MIB)
        threads.end()
    assert asked == [MIB, 2 * MIB]
