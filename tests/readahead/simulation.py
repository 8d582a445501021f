"""The engine in simulated time: a service with given delays and rates, readers of given speeds, and no bytes.

Run it under `autojump_clock`; the same seed gives the same times.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from tests.readahead.readers import MIB, Files, listed

_ZEROS = memoryview(bytes(16 * MIB))


@dataclass(slots=True, kw_only=True)
class SimulatedService:
    """A `RangeReader` whose GETs take a delay, longer by chance, and their bytes at the rate of a connection.

    All connections share a link: with more of them than fill it, each takes as much longer.
    """

    first_byte_s: float = 0.02
    connection_bytes_per_s: float = 90e6
    link_bytes_per_s: float = 1e12
    # The chance of a GET to take `late_factor` times as long to its first byte.
    late_chance: float = 0.0
    late_factor: float = 1.0
    gets: list[tuple[str, int, int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    # Of the engine's memory; parts kept for late requests do not count.
    most_bytes: int = 0
    engine: ReadEngine | None = None
    longest_get_s: float = 0.0
    chances: random.Random = field(default_factory=lambda: random.Random(1))

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self.gets.append((ref.key, start, end))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        assert self.engine is not None
        memory = self.engine.memory()
        self.most_bytes = max(self.most_bytes, memory["in flight"] + memory["unread"])
        late = self.late_factor if self.chances.random() < self.late_chance else 1.0
        alone_s = self.first_byte_s * late + (end - start) / self.connection_bytes_per_s
        try:
            took_s = max(alone_s, self.in_flight * (end - start) / self.link_bytes_per_s)
            self.longest_get_s = max(self.longest_get_s, took_s)
            await trio.sleep(took_s)
        finally:
            self.in_flight -= 1
        return _ZEROS[: end - start]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    @property
    def fetched_bytes(self) -> int:
        return sum(end - start for _, start, end in self.gets)


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads files of `size_bytes` from beginning to end, `request_bytes` at a time, at `bytes_per_s` where it can.

    After every `burst_bytes` it does something else for `pause_s`.
    """

    size_bytes: int
    bytes_per_s: float
    files: int = 1
    request_bytes: int = MIB
    burst_bytes: int = 1 << 60
    pause_s: float = 0.0
    # What came of it.
    took_s: float = 0.0
    waited_s: float = 0.0
    first_bytes_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def read_bytes_per_s(self) -> float:
        return self.files * self.size_bytes / self.took_s

    async def run(self, engine: ReadEngine, inode: int) -> None:
        began_s = trio.current_time()
        for number in range(self.files):
            await self._read_file(engine, inode + number)
        self.took_s = trio.current_time() - began_s

    async def _read_file(self, engine: ReadEngine, inode: int) -> None:
        ref = listed(f"file-{inode}", self.size_bytes)
        for offset in range(0, self.size_bytes, self.request_bytes):
            asked_s = trio.current_time()
            await engine.read(inode, ref, offset, self.request_bytes)
            waited_s = trio.current_time() - asked_s
            if not offset:
                self.first_bytes_s.append(waited_s)
            self.waits_s.append(waited_s)
            await trio.sleep(self.request_bytes / self.bytes_per_s)
            if self.pause_s and (offset + self.request_bytes) % self.burst_bytes == 0:
                await trio.sleep(self.pause_s)
        engine.release(inode)


@asynccontextmanager
async def simulated(
    service: SimulatedService, config: ReadaheadConfig, refs: Sequence[ObjectRef] = ()
) -> AsyncIterator[ReadEngine]:
    """An engine over `service`, which notes at each GET what the engine uses; `refs` are listed."""
    files = Files(refs)
    async with trio.open_nursery() as nursery:
        service.engine = ReadEngine(service, config, nursery, lambda: files)
        yield service.engine
        nursery.cancel_scope.cancel()


async def read_through(service: SimulatedService, readers: list[Reader], config: ReadaheadConfig) -> None:
    """All `readers` at once, each files of its own."""
    async with simulated(service, config) as engine, trio.open_nursery() as running:
        for index, reader in enumerate(readers):
            running.start_soon(reader.run, engine, 1 + 1000 * index)
