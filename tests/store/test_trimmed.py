import mmap
from dataclasses import dataclass

from fastfuse.store.memory import MemoryStore
from fastfuse.store.trimmed import TrimmingReader, private_bytes

MIB = 1 << 20
START = 60 * MIB


@dataclass(slots=True)
class Process:
    """With so much memory, of which a trim gives the rest back beyond `needed_bytes`."""

    used_bytes: int = START
    needed_bytes: int = START
    trims: int = 0

    def used(self) -> int:
        return self.used_bytes

    def trim(self) -> None:
        self.trims += 1
        self.used_bytes = self.needed_bytes


def a_reader(process: Process, store: MemoryStore) -> TrimmingReader:
    return TrimmingReader(store, 64 * MIB, used_bytes=process.used, trim=process.trim)


async def test_free_memory_is_given_back_once_there_is_more_than_the_limit_allows() -> None:
    store, process = MemoryStore(), Process()
    ref, reader = store.put("a", bytes(4 * MIB)), a_reader(process, store)
    process.used_bytes = START + 64 * MIB
    assert len(await reader.get_range(ref, 0, 4 * MIB)) == 4 * MIB
    assert process.trims == 0
    process.used_bytes = START + 80 * MIB
    await reader.get_range(ref, 0, 4 * MIB)
    assert (process.trims, process.used_bytes) == (1, START)


async def test_small_ranges_count_together() -> None:
    store, process = MemoryStore(), Process()
    ref, reader = store.put("a", bytes(MIB)), a_reader(process, store)
    process.used_bytes = START + 80 * MIB
    for _ in range(3):
        await reader.get_range(ref, 0, MIB)
    assert process.trims == 0
    await reader.get_range(ref, 0, MIB)
    assert process.trims == 1


async def test_memory_that_is_in_use_is_trimmed_in_vain_only_once() -> None:
    store, process = MemoryStore(), Process(START + 80 * MIB, START + 80 * MIB)
    ref = store.put("a", bytes(4 * MIB))
    process.used_bytes = START
    reader = a_reader(process, store)
    process.used_bytes = START + 80 * MIB
    counts = []
    for _ in range(5):
        await reader.get_range(ref, 0, 4 * MIB)
        counts.append(process.trims)
    assert counts == [1, 1, 1, 1, 1]
    process.used_bytes = START + 100 * MIB
    await reader.get_range(ref, 0, 4 * MIB)
    assert (process.trims, process.used_bytes) == (2, START + 80 * MIB)


async def test_a_trim_that_helped_is_followed_by_none_before_an_eighth_of_the_limit_was_fetched() -> None:
    store, process = MemoryStore(), Process()
    ref, reader = store.put("a", bytes(4 * MIB)), a_reader(process, store)
    counts = []
    for _ in range(4):
        process.used_bytes = START + 80 * MIB
        await reader.get_range(ref, 0, 4 * MIB)
        counts.append(process.trims)
    assert counts == [1, 1, 2, 2]


def test_memory_that_is_used_is_seen() -> None:
    with mmap.mmap(-1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        before_bytes = private_bytes()
        memory[:] = b"x" * len(memory)
        assert private_bytes() - before_bytes > len(memory) - MIB
