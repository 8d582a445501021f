"""Tiers over a store in memory. Two of them in one process hold their locks as two processes do."""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from fastfuse.cache.directory import open_or_none, prepare
from fastfuse.cache.reader import CachedReader
from fastfuse.cache.settings import CacheSettings
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader
from fastfuse.s3.buffers import PartBuffers
from tests.store import MemoryStore

KIB, MIB = 1 << 10, 1 << 20


def settings_of(directory: Path, *, size_bytes: int = 64 * MIB, min_free_bytes: int = 0) -> CacheSettings:
    return CacheSettings(directory=directory, size_bytes=size_bytes, min_free_bytes=min_free_bytes)


def content(name: str, size_bytes: int) -> bytes:
    return random.Random(name).randbytes(size_bytes)


async def _at_once() -> None:
    pass


class CountingStore(MemoryStore):
    """A store that notes what is fetched, after `hold` lets it."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        super().__init__(objects)
        self.fetched: list[tuple[str, int, int]] = []
        self.hold: Callable[[], Awaitable[None]] = _at_once

    @property
    def fetched_bytes(self) -> int:
        return sum(end - start for _, start, end in self.fetched)

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self.fetched.append((ref.key, start, end))
        await self.hold()
        return await super().get(ref, start, end)


async def get_begun(reader: RangeReader, ref: ObjectRef, start: int, end: int, store: RangeReader) -> Buffer:
    """Return what `reader` begins to get from `store` without a task, as threads do, or else what its `get` does."""
    got, is_there = list[Buffer | None](), trio.Event()

    def begin(ref: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        async def fetch() -> None:
            done(await store.get(ref, start, end))

        trio.lowlevel.spawn_system_task(fetch)
        return True

    def ended(data: Buffer | None) -> None:
        got.append(data)
        is_there.set()

    assert isinstance(reader, CachedReader)
    if not reader.begin(begin, ref, start, end, ended):
        return await reader.get(ref, start, end)
    await is_there.wait()
    assert got[0] is not None
    return got[0]


@asynccontextmanager
async def tier(
    store: MemoryStore,
    settings: CacheSettings,
    counters: Counters | None = None,
    *,
    queue_bytes: int = 64 * MIB,
    deadline_s: float = 60.0,
    takes_places: bool = False,
) -> AsyncIterator[RangeReader]:
    """Open a tier as a mount does; what it fetched is kept when the block ends."""
    prepare(settings, os.geteuid())
    cache = open_or_none(settings, os.geteuid())
    if cache is None:
        yield store
        return
    buffers = PartBuffers(part_bytes=8 * MIB, limit_bytes=64 * MIB)
    reader = CachedReader(
        store, cache, buffers, counters or Counters(), endpoint_url="http://s3.test",
        queue_bytes=queue_bytes, deadline_s=deadline_s, takes_places=takes_places,
    )  # fmt: skip
    try:
        yield reader
    finally:
        await reader.aclose()
