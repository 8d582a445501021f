"""Fetches go on side by side, within the memory given, and end with the first error."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import UnavailableError, first_of
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.made import MadeReader
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader
from fastfuse.s3.room import Room
from fastfuse.sagemaker.download.file_channel import DownloadReport, download
from tests.descriptors import open_descriptors
from tests.fakes import CountingReader, FailingReader, SlowReader
from tests.sagemaker.download.channels import MEMORY_BYTES, PART_BYTES, files_below, settings_for, table_of
from tests.store import MemoryStore


@dataclass
class WeighingReader:
    """Remembers how many bytes were on their way at most, and how many descriptors were open."""

    inner: RangeReader
    bytes_in_flight: int = 0
    most_bytes: int = 0
    most_descriptors: int = 0
    order: list[str] = field(default_factory=list)

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self.bytes_in_flight += end - start
        self.most_bytes = max(self.most_bytes, self.bytes_in_flight)
        self.most_descriptors = max(self.most_descriptors, len(os.listdir("/proc/self/fd")))
        self.order.append(ref.key)
        try:
            return await self.inner.get(ref, start, end)
        finally:
            self.bytes_in_flight -= end - start

    async def aclose(self) -> None:
        await self.inner.aclose()


def ignore(_: DownloadReport) -> None:
    pass


async def fetch(refs: list[ObjectRef], reader: RangeReader, directory: Path, most: int = 64) -> None:
    await download(table_of(refs), reader, settings_for(directory), ignore, most_gets=most)


def filled(objects: dict[str, bytes]) -> tuple[MemoryStore, list[ObjectRef]]:
    store = MemoryStore()
    return store, [store.put(key, data) for key, data in objects.items()]


async def test_bytes_on_their_way_never_exceed_the_memory_target(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    objects = {f"{number:02}": os.urandom(4 * PART_BYTES) for number in range(20)}
    store, refs = filled(objects)
    reader = WeighingReader(SlowReader(store, 1.0))
    await fetch(refs, reader, tmp_path)
    assert files_below(tmp_path) == objects
    assert PART_BYTES <= reader.most_bytes <= MEMORY_BYTES


async def test_no_more_gets_are_on_their_way_than_there_are_connections(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    objects = {f"{number:03}": b"%d" % number for number in range(300)}
    store, refs = filled(objects)
    reader = CountingReader(SlowReader(store, 1.0))
    await fetch(refs, reader, tmp_path, most=16)
    assert files_below(tmp_path) == objects
    assert 4 < reader.most_in_flight <= 16


async def test_a_line_on_which_gets_take_long_gets_fewer_of_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    objects = {f"{number:03}": b"%d" % number for number in range(30)}
    store, refs = filled(objects)
    reader = CountingReader(SlowReader(store, 30.0))
    await fetch(refs, reader, tmp_path)
    assert reader.most_in_flight == 4
    assert files_below(tmp_path) == objects


async def test_descriptors_are_bounded_whatever_the_number_of_directories(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    objects = {f"{number:04}/file": b"%d" % number for number in range(1500)}
    store, refs = filled(objects)
    before = len(open_descriptors())
    reader = WeighingReader(SlowReader(store, 0.01))
    await fetch(refs, reader, tmp_path)
    assert files_below(tmp_path) == objects
    # Jobs ahead, and fetches under way: a directory and a file each.
    assert reader.most_descriptors - before < 128 + 2 * 128 + 20
    assert len(open_descriptors()) == before


async def test_a_memory_target_below_a_part_makes_smaller_parts(tmp_path: Path) -> None:
    data = os.urandom(3 * MEMORY_BYTES)
    store, refs = filled({"large": data})
    reader = CountingReader(store)
    large_parts = replace(settings_for(tmp_path), part_size_bytes=8 * MEMORY_BYTES)
    await download(table_of(refs), reader, large_parts, ignore, most_gets=4)
    assert max(end - start for _, start, end in reader.calls) == MEMORY_BYTES // 2
    assert files_below(tmp_path) == {"large": data}


async def test_the_first_error_ends_everything(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    objects = {f"{number:03}": b"%d" % number for number in range(300)}
    store, refs = filled(objects)
    reader = CountingReader(
        FailingReader(
            SlowReader(store, 1.0), lambda: UnavailableError("'050' failed"), 1, lambda ref, *_: ref.key == "050"
        )
    )
    with pytest.raises(ExceptionGroup) as told:
        await fetch(refs, reader, tmp_path)
    assert str(first_of(told.value)) == "'050' failed"
    assert len(reader.calls) < 300
    whole = {name: data for name, data in files_below(tmp_path).items() if not name.startswith(".")}
    assert whole.items() <= objects.items()


async def test_made_files_are_made_again_each_time(tmp_path: Path) -> None:
    builder = TableBuilder("bucket", "")
    builder.add_made(b"order.txt", b"1\n2\n", 5)
    table, _ = builder.build()
    reader = MadeReader(MemoryStore(), lambda: table)
    for _ in range(2):
        report = await download(table, reader, settings_for(tmp_path), ignore, most_gets=4)
        assert (report.kept_files, report.fetched_bytes) == (0, 4)
    assert files_below(tmp_path) == {"order.txt": b"1\n2\n"}


async def is_let_in(room: Room, size_bytes: int) -> bool:
    with trio.move_on_after(0):
        await room.enter(size_bytes)
        return True
    return False


async def test_writes_that_are_not_through_hold_gets_back() -> None:
    room = Room(most_gets=4, most_fetches=6, memory_bytes=100)
    for _ in range(6):
        await room.enter(1)
        room.landed(trio.current_time())
    assert not await is_let_in(room, 1)
    room.leave(1)
    assert await is_let_in(room, 1)
