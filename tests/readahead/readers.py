"""A range reader whose every fetch the test controls, and the engine around it."""

import random
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from fastfuse.errors import ObjectDeniedError, StaleInodeError
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.readahead.limits import PAGE_BYTES
from tests.readahead.books import check_books, parts_waiting

KIB = 1 << 10
MIB = 1 << 20

# Small enough that a test moves few bytes: 16 parts of memory, windows of up to 8 parts.
SMALL = ReadaheadConfig(
    part_size_bytes=64 * KIB,
    first_part_bytes=16 * KIB,
    max_window_bytes=512 * KIB,
    memory_limit_bytes=MIB,
    max_parts_in_flight=16,
)


def listed(key: str, size_bytes: int, etag: str = '"v1"') -> ObjectRef:
    return ObjectRef("bucket", key, size_bytes, etag)


# Of a prime number of bytes, so that no two parts of an object begin alike.
_PERIOD_BYTES = 1_048_583
_RANDOM = random.Random(0).randbytes(_PERIOD_BYTES) * 2


def content(ref: ObjectRef) -> bytes:
    """Return the bytes of the object, a place in an endless row that its name and version decide."""
    start = zlib.crc32(f"{ref.key} {ref.etag}".encode()) % _PERIOD_BYTES
    row = _RANDOM * (1 + ref.size_bytes // _PERIOD_BYTES) if ref.size_bytes > _PERIOD_BYTES else _RANDOM
    return row[start : start + ref.size_bytes]


class Files:
    """A listing of objects; the inode of each is its row plus one, and None is a directory."""

    unread_classes = ARCHIVE_STORAGE_CLASSES

    def __init__(self, refs: Sequence[ObjectRef | None]) -> None:
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __contains__(self, inode: int) -> bool:
        return 0 < inode <= len(self.refs)

    def row(self, inode: int) -> int:
        if not 0 < inode <= len(self.refs):
            raise StaleInodeError(f"inode {inode} is not in the table")
        return inode - 1

    def file_at(self, row: int) -> tuple[int, int] | None:
        ref = self.refs[row]
        return None if ref is None else (row + 1, ref.size_bytes)

    def name_at(self, row: int) -> bytes:
        ref = self.refs[row]
        return b"" if ref is None else ref.key.encode()

    def ref(self, inode: int) -> ObjectRef:
        ref = self.refs[self.row(inode)]
        if ref is None:
            raise ValueError(f"inode {inode} is a directory")
        return ref


class ScriptedReader:
    """Serves `content`. Ranges for which `holds` is true wait for `let_go`; those in `failures` raise, once each.

    The objects in `denied` always raise.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.gets: list[tuple[str, int, int]] = []
        self.holds: Callable[[str, int, int], bool] = lambda _key, _start, _end: False
        self.failures: dict[tuple[str, int], Exception] = {}
        self.denied = set[str]()
        self.in_flight_bytes = 0
        self._gate = trio.Event()
        self._delay_s = delay_s
        self._contents: dict[tuple[str, str], bytes] = {}

    def let_go(self) -> None:
        self.holds = lambda _key, _start, _end: False
        self._gate.set()
        self._gate = trio.Event()

    def ranges(self, key: str) -> list[tuple[int, int]]:
        return [(start, end) for name, start, end in self.gets if name == key]

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        assert 0 <= start < end <= ref.size_bytes
        self.gets.append((ref.key, start, end))
        self.in_flight_bytes += end - start
        try:
            await trio.sleep(self._delay_s)
            while self.holds(ref.key, start, end):
                await self._gate.wait()
            failure = self.failures.pop((ref.key, start), None)
            if failure is not None:
                raise failure
            if ref.key in self.denied:
                raise ObjectDeniedError(f"{ref.key} is denied")
        finally:
            self.in_flight_bytes -= end - start
        identity = (ref.key, ref.etag)
        if identity not in self._contents:
            self._contents[identity] = content(ref)
        return memoryview(self._contents[identity])[start:end]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class BeginningReader:
    """Begins GETs as `BeginGet` says; `outcome` tells of each what becomes of it.

    That is "right", "in vain", "refused" or "raises". Their bytes count as those of `reader` in flight.
    """

    def __init__(self, reader: ScriptedReader, nursery: trio.Nursery, outcome: Callable[[], str]) -> None:
        self._reader, self._nursery, self._outcome = reader, nursery, outcome
        self.begun: list[tuple[str, int, int]] = []

    def begin(self, ref: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        outcome = self._outcome()
        if outcome == "raises":
            raise MemoryError
        if outcome == "refused":
            return False
        self._nursery.start_soon(self._end, end - start, done, content(ref)[start:end] if outcome == "right" else None)
        self.begun.append((ref.key, start, end))
        self._reader.in_flight_bytes += end - start
        return True

    async def _end(self, size_bytes: int, done: Callable[[Buffer | None], None], data: bytes | None) -> None:
        try:
            await trio.sleep(0.01)
        finally:
            self._reader.in_flight_bytes -= size_bytes
        done(data)


def tensors(seed: int, size_bytes: int, largest_bytes: int) -> list[tuple[int, int]]:
    """Ranges that make up a file of about `size_bytes`, in the order in which the keys of a checkpoint are read.

    `torch.save` stores tensors in the order of their numbers as strings ("0", "1", "10", "100", "101", …), and
    `torch.load(mmap=True)` leads to page faults in the order of the numbers.
    """
    chances = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < size_bytes:
        sizes.append(
            chances.choice(
                [PAGE_BYTES, PAGE_BYTES, 4 * PAGE_BYTES, largest_bytes // 16, largest_bytes // 2, largest_bytes]
            )
        )
    ranges = {}
    position = 0
    for number in sorted(range(len(sizes)), key=str):
        ranges[number] = (position, position + sizes[number])
        position += sizes[number]
    return [ranges[number] for number in range(len(sizes))]


@asynccontextmanager
async def running(
    config: ReadaheadConfig = SMALL, files: Files | Callable[[], Files] | None = None, *, delay_s: float = 0.0
) -> AsyncIterator[tuple[ReadEngine, ScriptedReader]]:
    """An engine over a reader; whatever the test did, at rest nothing is reserved and the books are right."""
    reader = ScriptedReader(delay_s)
    async with trio.open_nursery() as nursery:
        engine = ReadEngine(reader, config, nursery, files if callable(files) else lambda: files or Files([]))
        yield engine, reader
        reader.let_go()
        await settled()
        pool = engine.pool
        for _ in range(1000 if delay_s else 0):
            if not pool.parts_in_flight:
                break
            await trio.sleep(delay_s)
            await settled()
        check_books(engine)
        assert (pool.reserved_bytes, pool.parts_in_flight, parts_waiting(engine)) == (0, 0, 0)
        assert reader.in_flight_bytes == 0


async def settled() -> None:
    """Everything that can run has run (sleeping fetches apart)."""
    await trio.testing.wait_all_tasks_blocked()
