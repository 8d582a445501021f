"""Clauses D1 and D3: the bytes of a file, whatever system call asks for them."""

import errno
import filecmp
import hashlib
import mmap
import os
import random
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from bench.processes import pss_bytes
from bench.s3server import parse_synthetic, synthetic_bytes
from bench.server import Server
from tests.mounting import mounted
from tests.reading.conftest import SIZES, DataSet

BIG = SIZES[-1]
MIB = 1 << 20


@contextmanager
def uncached(path: Path, flags: int = 0) -> Iterator[int]:
    """A descriptor of a file that is not in the page cache."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("size", SIZES)
def test_cp_copies_the_bytes(dataset: DataSet, tmp_path: Path, size: int) -> None:
    """D1"""
    written, mounted_file = dataset.pair(size)
    subprocess.run(["cp", mounted_file, tmp_path / "copy"], check=True)
    assert filecmp.cmp(written, tmp_path / "copy", shallow=False)


@pytest.mark.parametrize("size", SIZES)
def test_direct_reads_give_the_bytes(dataset: DataSet, size: int) -> None:
    """D3"""
    written, mounted_file = dataset.pair(size)
    data, seen = written.read_bytes(), bytearray()
    with uncached(mounted_file, os.O_DIRECT) as descriptor, mmap.mmap(-1, 3 * MIB) as buffer:
        while count := os.preadv(descriptor, [buffer], len(seen)):
            seen += buffer[:count]
    assert seen == data


@pytest.mark.parametrize("size", [size for size in SIZES if size])
def test_a_mapping_shows_the_bytes(dataset: DataSet, size: int) -> None:
    """D3"""
    written, mounted_file = dataset.pair(size)
    with uncached(mounted_file) as descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[size - 1 :] == written.read_bytes()[size - 1 :]
        assert hashlib.sha256(mapping).digest() == hashlib.sha256(written.read_bytes()).digest()


def test_a_few_pages_of_a_mapping_fetch_little_and_a_large_read_at_any_page_has_all_bytes(dataset: DataSet) -> None:
    """D3: the kernel asks for 1 MiB around each fault, most of which is refused; nobody else may learn of that."""
    written = dataset.pair(BIG)[0]
    data, places = written.read_bytes(), range(5 * MIB, 60 * MIB, 6 * MIB)
    with (
        Server(dataset.source) as server,
        # No memory for all of the file, which is fetched once readers have waited for so long: on a busy machine soon.
        mounted(f"s3://{server.bucket}", server.endpoint_url, "--memory-target", "128MiB") as mount,
    ):
        mounted_file = mount.path / written.relative_to(dataset.source)
        before_bytes = server.traffic().sent_bytes
        with uncached(mounted_file) as descriptor:
            with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapping:
                assert mapping[:100] == data[:100]
                assert [mapping[at : at + 100] for at in places] == [data[at : at + 100] for at in places]
            assert server.traffic().sent_bytes - before_bytes < 7 * MIB
        for flags in (os.O_DIRECT, 0):
            with uncached(mounted_file, flags) as descriptor, mmap.mmap(-1, MIB) as buffer:
                for at in range(7 * MIB + 4096, 60 * MIB, 6 * MIB):
                    assert (os.preadv(descriptor, [buffer], at), buffer[:]) == (MIB, data[at : at + MIB])


def test_pages_of_a_mapping_can_be_touched_in_any_order(dataset: DataSet) -> None:
    """D3"""
    written, mounted_file = dataset.pair(BIG)
    data, generator = written.read_bytes(), random.Random(1)
    with uncached(mounted_file) as descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)
        for _ in range(200):
            offset = generator.randrange(BIG)
            assert mapping[offset : offset + 5000] == data[offset : offset + 5000]


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["through the page cache", "direct"])
def test_threads_read_at_random_from_one_descriptor(dataset: DataSet, flags: int) -> None:
    """D3"""
    written, mounted_file = dataset.pair(BIG)
    data = written.read_bytes()

    def reads(seed: int) -> bool:
        generator = random.Random(seed)
        with mmap.mmap(-1, 2 * MIB) as buffer:
            for _ in range(40):
                offset = generator.randrange(BIG) & ~4095
                size = generator.choice([4096, 65536, MIB, 2 * MIB])
                count = os.preadv(descriptor, [memoryview(buffer)[:size]], offset)
                if buffer[:count] != data[offset : offset + size]:
                    return False
        return True

    with uncached(mounted_file, flags) as descriptor, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(reads, range(8)))


def test_sendfile_sends_the_bytes(dataset: DataSet, tmp_path: Path) -> None:
    """D3"""
    written, mounted_file = dataset.pair(BIG)
    with uncached(mounted_file) as descriptor, (tmp_path / "copy").open("wb") as copy:
        while os.sendfile(copy.fileno(), descriptor, None, 1 << 30):
            pass
    assert filecmp.cmp(written, tmp_path / "copy", shallow=False)


@pytest.mark.parametrize("advice", ["NORMAL", "SEQUENTIAL", "RANDOM", "WILLNEED", "NOREUSE", "DONTNEED"])
def test_advice_changes_nothing_but_the_speed(dataset: DataSet, advice: str) -> None:
    """D3"""
    written, mounted_file = dataset.pair(9 * MIB)
    with uncached(mounted_file) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, getattr(os, f"POSIX_FADV_{advice}"))
        assert hashlib.sha256(b"".join(iter(lambda: os.read(descriptor, 300_000), b""))).digest() == (
            hashlib.sha256(written.read_bytes()).digest()
        )


def test_seeking_finds_data_everywhere_and_the_only_hole_at_the_end(dataset: DataSet) -> None:
    """D3"""
    with dataset.pair(BIG)[1].open("rb", buffering=0) as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == BIG
        assert os.lseek(file.fileno(), -7, os.SEEK_END) == BIG - 7
        assert os.lseek(file.fileno(), 12_345, os.SEEK_DATA) == 12_345
        assert os.lseek(file.fileno(), 12_345, os.SEEK_HOLE) == BIG
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError, match="No such device") as caught:
                os.lseek(file.fileno(), BIG, whence)
            assert caught.value.errno == errno.ENXIO


@pytest.mark.parametrize("part_size", ["1MiB", "32MiB"])
def test_many_readers_and_many_open_files_share_a_small_memory(dataset: DataSet, part_size: str) -> None:
    """D1, D3"""
    names = sorted(str(path.relative_to(dataset.source)) for path in dataset.source.rglob("*") if path.is_file())
    options = ("--memory-target", "128MiB", "--part-size", part_size)
    with mounted("s3://bench", dataset.endpoint_url, *options) as mount, ThreadPoolExecutor(32) as threads:
        files = [(mount.path / name).open("rb", buffering=0) for name in names]
        try:
            read = list(threads.map(lambda file: hashlib.sha256(file.readall()).digest(), files))
        finally:
            for file in files:
                file.close()
        assert read == [hashlib.sha256((dataset.source / name).read_bytes()).digest() for name in names]


def test_a_gibibyte_is_read_in_order_and_at_random_within_the_memory_target() -> None:
    """D1, D3"""
    size, chunk, objects = 64 * MIB, 8 * MIB, "count=16,size=64MiB"
    view, generator = parse_synthetic(objects).view(), random.Random(3)
    keys = [view.key_at(index).decode() for index in range(len(view))]
    with Server(objects) as server, mounted(f"s3://{server.bucket}", server.endpoint_url) as mount:

        def check(key: str, offsets: Iterable[int]) -> None:
            with (mount.path / key).open("rb", buffering=0) as file:
                for offset in offsets:
                    expected = synthetic_bytes(key, offset, min(offset + chunk, size))
                    assert os.pread(file.fileno(), chunk, offset) == expected
                    assert pss_bytes(mount.process.pid) <= 256 * MIB  # the target of `mounted`

        with ThreadPoolExecutor(8) as threads:
            for offsets in ([generator.randrange(size) for _ in range(2)], range(0, size + 1, chunk)):
                list(threads.map(check, keys, repeat(offsets)))
