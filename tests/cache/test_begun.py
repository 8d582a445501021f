"""Gets that a tier begins without a task: claimed, kept and shared as those of `get`, or left to it."""

import errno
import sqlite3
from collections.abc import Callable
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
    """Stands in for the threads: what is begun ends when the test says so."""

    def __init__(self) -> None:
        # The ranges that were asked for, begun or not, and the bytes of those that ended.
        self.asked: list[tuple[int, int]] = []
        self.ended: list[bytes | None] = []
        self.is_refusing = self.is_failing = False
        self._begun: list[tuple[int, int, Callable[[Buffer | None], None]]] = []

    def begins(self, reader: RangeReader, ref: ObjectRef, start: int, end: int) -> bool:
        """Return whether `reader` begins to get the range."""
        assert isinstance(reader, CachedReader)
        return reader.begin(
            self._begin, ref, start, end, lambda data: self.ended.append(None if data is None else bytes(data))
        )

    def end(self, *, is_right: bool = True) -> None:
        """End what was begun last of what is under way."""
        start, end, done = self._begun.pop()
        done(memoryview(BIG)[start:end] if is_right else None)

    def _begin(self, _: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        self.asked.append((start, end))
        if self.is_failing:
            raise MemoryError
        if not self.is_refusing:
            self._begun.append((start, end, done))
        return not self.is_refusing


async def test_what_is_begun_is_kept_and_nobody_else_fetches_it(tmp_path: Path) -> None:
    store, threads, counters, got = CountingStore({"big": BIG}), Threads(), Counters(), list[bytes]()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")

    async def read() -> None:
        got.append(bytes(await other.get(ref, 0, MIB)))

    async with tier(store, settings, counters) as one, tier(store, settings) as other, trio.open_nursery() as nursery:
        assert threads.begins(one, ref, 0, MIB)
        for reader in (one, other):
            assert not threads.begins(reader, ref, 0, MIB)
            assert not threads.begins(reader, ref, MIB // 2, 2 * MIB)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        threads.end()
    assert got == threads.ended == [BIG[:MIB]]
    assert counters.get("fastfuse_cache_bytes", "written") == MIB
    async with tier(store, settings) as later:
        assert not threads.begins(later, ref, 0, MIB)
        assert bytes(await later.get(ref, 0, MIB)) == BIG[:MIB]
    assert threads.asked == [(0, MIB)]
    assert store.fetched == []


@pytest.mark.parametrize("outcome", ["in vain", "refused", "raises", "no room in the queue"])
async def test_what_is_not_kept_is_claimed_no_longer(outcome: str, tmp_path: Path) -> None:
    store, threads, counters = CountingStore({"big": BIG}), Threads(), Counters()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    async with tier(store, settings, counters, queue_bytes=MIB) as one, tier(store, settings) as other:
        if outcome == "raises":
            threads.is_failing = True
            with pytest.raises(MemoryError):
                threads.begins(one, ref, 0, 2 * MIB)
        else:
            threads.is_refusing = outcome == "refused"
            assert threads.begins(one, ref, 0, 2 * MIB) != threads.is_refusing
            if not threads.is_refusing:
                threads.end(is_right=outcome == "no room in the queue")
        threads.is_refusing = threads.is_failing = False
        for reader in (one, other):
            assert threads.begins(reader, ref, 0, 2 * MIB)
            threads.end(is_right=False)
    assert threads.ended[:-2] == {"in vain": [None], "no room in the queue": [BIG[: 2 * MIB]]}.get(outcome, [])
    assert counters.get("fastfuse_cache_bytes", "skipped") == (2 * MIB if outcome == "no room in the queue" else 0)
    assert counters.get("fastfuse_cache_bytes", "written") == 0


async def test_what_is_not_worth_its_room_is_begun_without_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, threads, counters = CountingStore({"big": BIG}), Threads(), Counters()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    monkeypatch.setattr(writer.Writer, "takes", lambda *_: False)
    async with tier(store, settings, counters) as one, tier(store, settings) as other:
        assert threads.begins(one, ref, 0, MIB)
        assert threads.begins(other, ref, 0, MIB)
        threads.end()
        threads.end()
    assert threads.ended == 2 * [BIG[:MIB]]
    assert counters.get("fastfuse_cache_bytes", "declined") == MIB
    assert counters.get("fastfuse_cache_bytes", "written") == 0


async def test_what_is_unusual_is_left_to_get(tmp_path: Path) -> None:
    """That is a range of which something is kept, and an object that had not its checksum."""
    store, threads = CountingStore({"big": BIG}), Threads()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    async with tier(store, settings) as reader:
        await reader.get(ref, MIB - 1, MIB + 1)
    async with tier(store, settings) as reader:
        for start, end in ((0, MIB), (MIB, 2 * MIB), (0, len(BIG))):
            assert not threads.begins(reader, ref, start, end)
        await reader.get(ref, 2 * MIB, 3 * MIB)  # no claim is left
        assert threads.begins(reader, ref, 3 * MIB, 4 * MIB)
        threads.end(is_right=False)

        async def fail() -> None:
            raise IntegrityError("the checksum is wrong")

        store.hold = fail
        with pytest.raises(IntegrityError):
            await reader.get(ref, 0, 1)
        assert not threads.begins(reader, ref, 3 * MIB, 4 * MIB)
    assert threads.asked == [(3 * MIB, 4 * MIB)]


async def test_nothing_is_kept_of_what_was_under_way_when_its_object_proved_wrong(tmp_path: Path) -> None:
    store, threads, counters = CountingStore({"big": BIG}), Threads(), Counters()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")

    async def fail() -> None:
        raise IntegrityError("the checksum is wrong")

    store.hold = fail
    async with tier(store, settings, counters) as reader:
        assert threads.begins(reader, ref, 0, MIB)
        with pytest.raises(IntegrityError):
            await reader.get(ref, 3 * MIB, 4 * MIB)
        threads.end()
    assert threads.ended == [BIG[:MIB]]
    assert counters.get("fastfuse_cache_bytes", "written") == 0


async def test_a_tier_that_is_left_alone_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, threads, counters = CountingStore({"big": BIG}), Threads(), Counters()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    async with tier(store, settings) as one, tier(store, settings, counters) as other:
        with monkeypatch.context() as patched:
            patched.setattr(catalog.Index, "find", fail)
            assert not threads.begins(other, ref, 0, MIB)
        assert counters.get("fastfuse_cache_failures", "index") == 1
        assert threads.begins(one, ref, 0, MIB)  # no claim is left
        assert threads.begins(other, ref, 0, MIB)
        threads.end()
        threads.end(is_right=False)
    assert counters.get("fastfuse_cache_bytes", "written") == 0
    assert threads.ended == [BIG[:MIB], None]


@pytest.mark.parametrize("is_worth_it", [False, True])
async def test_a_claim_that_the_file_system_keeps_stops_no_get(
    is_worth_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, threads = CountingStore({"big": BIG}), Threads()
    ref, settings, set_lock = store.ref("big"), settings_of(tmp_path / "cache"), shared.set_lock

    def fail(fd: int, is_claim: bool, object_id: int, start: int, end: int) -> None:
        if not is_claim:
            raise OSError(errno.EIO, "the disk is gone")
        set_lock(fd, is_claim, object_id, start, end)

    monkeypatch.setattr(claims, "set_lock", fail)
    monkeypatch.setattr(writer.Writer, "takes", lambda *_: is_worth_it)
    async with tier(store, settings) as reader:
        assert threads.begins(reader, ref, 0, MIB)
        threads.end(is_right=False)
        assert threads.begins(reader, ref, 0, MIB)
        threads.end()
    assert threads.ended == [None, BIG[:MIB]]


async def test_a_range_that_is_begun_counts_once_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, threads, asked = CountingStore({"big": BIG}), Threads(), list[int]()
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    monkeypatch.setattr(writer.Writer, "ask", lambda _, __, size_bytes: asked.append(size_bytes))
    async with tier(store, settings) as reader:
        assert threads.begins(reader, ref, 0, MIB)
        threads.is_refusing = True
        assert not threads.begins(reader, ref, MIB, 3 * MIB)
        await reader.get(ref, MIB, 3 * MIB)
        threads.end()
    assert asked == [MIB, 2 * MIB]
