import mmap
from dataclasses import dataclass

from fastfuse.s3.buffers import PartBuffers, Trimmer, private_bytes

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


def buffers_of(process: Process) -> PartBuffers:
    trimmer = Trimmer(64 * MIB, used_bytes=process.used, trim=process.trim)
    return PartBuffers(part_bytes=8 * MIB, limit_bytes=64 * MIB, trimmer=trimmer)


def test_free_memory_is_given_back_once_there_is_more_than_the_limit_allows() -> None:
    process = Process()
    buffers = buffers_of(process)
    process.used_bytes = START + 64 * MIB
    buffers.take(4 * MIB)
    assert process.trims == 0
    process.used_bytes = START + 80 * MIB
    buffers.take(4 * MIB)
    assert (process.trims, process.used_bytes) == (1, START)


def test_small_buffers_count_together_and_so_do_those_beside_the_mapping() -> None:
    process = Process()
    buffers = buffers_of(process)
    process.used_bytes = START + 80 * MIB
    for size_bytes in (MIB, MIB, 100_000, 9 * MIB):
        assert process.trims == 0
        buffers.take(size_bytes)
    assert process.trims == 1


def test_memory_that_is_in_use_is_trimmed_in_vain_only_once() -> None:
    process = Process(needed_bytes=START + 80 * MIB)
    buffers = buffers_of(process)
    process.used_bytes = START + 80 * MIB
    counts = []
    for _ in range(5):
        buffers.take(4 * MIB)
        counts.append(process.trims)
    assert counts == [1, 1, 1, 1, 1]
    process.used_bytes = START + 100 * MIB
    buffers.take(4 * MIB)
    assert (process.trims, process.used_bytes) == (2, START + 80 * MIB)


def test_a_trim_that_helped_is_followed_by_none_before_an_eighth_of_the_limit_was_taken() -> None:
    process = Process()
    buffers = buffers_of(process)
    counts = []
    for _ in range(4):
        process.used_bytes = START + 80 * MIB
        buffers.take(4 * MIB)
        counts.append(process.trims)
    assert counts == [1, 1, 2, 2]


def test_memory_that_is_used_is_seen() -> None:
    with mmap.mmap(-1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        before_bytes = private_bytes()
        memory[:] = b"x" * len(memory)
        assert private_bytes() - before_bytes > len(memory) - MIB
