"""Large files that are read one after the other: the next one is on its way before it is begun."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from fastfuse.errors import UnavailableError
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from tests.readahead.books import check_books
from tests.readahead.readers import KIB, MIB, SMALL, Files, ScriptedReader, content, listed, running, settled
from tests.readahead.simulation import SimulatedService, simulated

# As in a job: whole files are expected from the first on.
CONFIG = replace(SMALL, first_window_bytes=256 * KIB)
# More is ahead than a file has.
AMPLE = replace(
    CONFIG,
    first_window_bytes=1000 * KIB,
    max_window_bytes=2 * MIB,
    memory_limit_bytes=64 * MIB,
    max_parts_in_flight=256,
)
SIZE_BYTES = 400 * KIB
# The window goes by the rate of a reader: here 16 MB/s, on a virtual clock.
_READ_S = 1e-3


def shards(count: int) -> list[ObjectRef]:
    return [listed(f"shard-{index:03}", SIZE_BYTES) for index in range(count)]


@asynccontextmanager
async def following(
    count: int, config: ReadaheadConfig = CONFIG
) -> AsyncIterator[tuple[list[ObjectRef], ReadEngine, ScriptedReader]]:
    refs = shards(count)
    async with running(config, Files(refs)) as (engine, reader):
        yield refs, engine, reader


async def read_until(
    engine: ReadEngine, inode: int, ref: ObjectRef, end: int = SIZE_BYTES, read_s: float = _READ_S
) -> None:
    data = b""
    while len(data) < end:
        data += await engine.read(inode, ref, len(data), 16 * KIB)
        await trio.sleep(read_s)
        await settled()
    assert data == content(ref)[: len(data)]
    engine.release(inode)
    await settled()


async def read_all(engine: ReadEngine, refs: list[ObjectRef], rows: Iterable[int], read_s: float = _READ_S) -> None:
    for row in rows:
        await read_until(engine, row + 1, refs[row], read_s=read_s)


async def begin_and_leave(engine: ReadEngine, refs: list[ObjectRef], rows: Iterable[int]) -> None:
    for row in rows:
        await engine.read(row + 1, refs[row], 0, 4 * KIB)
        await trio.sleep(_READ_S)
        engine.release(row + 1)
        await settled()


async def test_the_third_file_in_a_row_is_on_its_way_when_the_second_ends(autojump_clock: MockClock) -> None:
    async with following(6) as (refs, engine, reader):
        await read_all(engine, refs, [2])
        assert reader.ranges("shard-003") == []
        await read_all(engine, refs, [3])
        assert min(reader.ranges("shard-004"))[0] == 0
        await read_all(engine, refs, [4])
        # Every byte once.
        assert sum(end - start for start, end in reader.ranges("shard-004")) == SIZE_BYTES
        check_books(engine)


@pytest.mark.parametrize("directories", [0, 2])
async def test_behind_the_first_file_of_all_the_second_is_on_its_way_if_no_other_was_begun(
    autojump_clock: MockClock, directories: int
) -> None:
    refs = [None] * directories + shards(4)
    async with running(CONFIG, Files(refs)) as (engine, reader):
        first = refs[directories]
        assert first is not None
        await read_until(engine, directories + 1, first)
        assert min(reader.ranges("shard-001"))[0] == 0


async def test_who_needs_more_ahead_than_a_file_has_several_on_their_way(autojump_clock: MockClock) -> None:
    async with following(8, AMPLE) as (refs, engine, reader):
        await read_all(engine, refs, [0, 1], read_s=0)
        # Of 1,000 KiB ahead of the end of the second: two files at least, and some of the third.
        assert [len(reader.ranges(f"shard-00{row}")) for row in (2, 3)] == [7, 7]
        assert reader.ranges("shard-004")
        await read_all(engine, refs, range(2, 8))
        check_books(engine)
    assert sum(end - start for _, start, end in reader.gets) == 8 * SIZE_BYTES


@pytest.mark.parametrize("readers", [2, 8])
async def test_no_reader_gives_up_what_another_has_ahead(autojump_clock: MockClock, readers: int) -> None:
    async with following(8 * readers, AMPLE) as (refs, engine, reader):
        async with trio.open_nursery() as nursery:
            for first in range(0, len(refs), 8):
                nursery.start_soon(read_all, engine, refs, range(first, first + 8))
        check_books(engine)
    assert sum(end - start for _, start, end in reader.gets) == len(refs) * SIZE_BYTES


@pytest.mark.parametrize("readers", [8, 16])
async def test_readers_that_end_files_together_find_the_next_ahead(autojump_clock: MockClock, readers: int) -> None:
    """As of equal shards; more is ahead than what was read is kept.

    Of 16, those that end their first file first have files ahead released while the others begin their second.
    """
    async with following(8 * readers, AMPLE) as (refs, engine, reader):
        for step in range(8):
            rows = range(step, len(refs), 8)
            for offset in range(0, SIZE_BYTES, 16 * KIB):
                for row in rows:
                    await engine.read(row + 1, refs[row], offset, 16 * KIB)
            await settled()
            for row in rows:
                engine.release(row + 1)
        check_books(engine)
    assert sum(end - start for _, start, end in reader.gets) <= (1.05 if readers == 8 else 1.1) * len(refs) * SIZE_BYTES


async def test_what_many_readers_leave_is_given_up_sooner_but_for_four_files(autojump_clock: MockClock) -> None:
    readers = 8
    refs = shards(8 * readers + 40)
    config = replace(CONFIG, first_window_bytes=1800 * KIB, max_window_bytes=4 * MIB, memory_limit_bytes=32 * MIB)
    async with running(replace(config, max_parts_in_flight=256), Files(refs)) as (engine, _):
        for step in range(2):
            await read_all(engine, refs, range(step, 8 * readers, 8), read_s=0)
        assert engine.streams > 2 * readers
        elsewhere = range(8 * readers + 1, len(refs), 2)
        await begin_and_leave(engine, refs, elsewhere[:8])
        assert engine.streams == 4
        await begin_and_leave(engine, refs, elsewhere[8:])
        assert engine.streams == 0
        check_books(engine)


async def test_who_begins_elsewhere_than_was_foreseen_soon_has_files_ahead(autojump_clock: MockClock) -> None:
    config = replace(CONFIG, first_window_bytes=1200 * KIB, memory_limit_bytes=8 * MIB, max_parts_in_flight=64)
    async with following(24, replace(config, expects_every_file=True)) as (refs, engine, reader):
        await read_all(engine, refs, [0])
        await read_all(engine, refs, range(12, 18))
        assert reader.ranges("shard-018")


@pytest.mark.parametrize("bytes_per_s", [2e9, 2e7])
async def test_readers_of_short_shards_have_a_get_ahead(autojump_clock: MockClock, bytes_per_s: float) -> None:
    """110 MB a shard; 113 ms a GET of 8 MiB."""
    refs = [listed(f"shard-{index:02}", 104 * MIB) for index in range(16)]
    service = SimulatedService()
    config = ReadaheadConfig(first_window_bytes=128 * MIB, memory_limit_bytes=2 << 30, max_parts_in_flight=128)
    took_s = []
    async with simulated(service, config, refs) as engine:
        for inode, ref in enumerate(refs, start=1):
            began_s = trio.current_time()
            for offset in range(0, ref.size_bytes, MIB):
                await engine.read(inode, ref, offset, MIB)
                await trio.sleep(MIB / bytes_per_s)
            engine.release(inode)
            took_s.append(trio.current_time() - began_s)
    # All but the first few are hardly waited for.
    assert sum(took_s[8:]) < 1.2 * 8 * 104 * MIB / bytes_per_s
    assert service.most_bytes < (512 if bytes_per_s > 1e9 else 192) * MIB


@pytest.mark.parametrize("readers", [1, 8])
@pytest.mark.parametrize(("expects_all", "before_bytes"), [(False, 24 * MIB), (True, 400 * MIB)])
@pytest.mark.parametrize("header_bytes", [16 * KIB, MIB])
async def test_of_files_of_which_only_headers_are_read_little_more_is_fetched(
    autojump_clock: MockClock, readers: int, expects_all: bool, before_bytes: int, header_bytes: int
) -> None:
    """Once a few were left: of these some MiB were fetched, or all where whole files are expected."""
    refs = [listed(f"file-{index:03}", 64 * MIB) for index in range(200)]
    service = SimulatedService()
    config = ReadaheadConfig(first_window_bytes=256 * MIB * expects_all, max_parts_in_flight=128)

    async def look_at(rows: range) -> None:
        for row in rows:
            await engine.read(row + 1, refs[row], 0, header_bytes)

    async with simulated(service, config, refs) as engine:
        async with trio.open_nursery() as nursery:
            for reader in range(readers):
                nursery.start_soon(look_at, range(reader, len(refs), readers))
        check_books(engine)
    assert service.fetched_bytes <= len(refs) * max(header_bytes, 128 * KIB) + before_bytes


async def test_files_in_no_order_are_not_followed_by_others(autojump_clock: MockClock) -> None:
    async with following(8) as (refs, engine, reader):
        await read_all(engine, refs, [6, 3, 0, 5, 2])
    assert {key for key, _, _ in reader.gets} == {f"shard-{row:03}" for row in (6, 3, 0, 5, 2)}


async def test_who_stops_in_the_middle_of_a_file_has_fetched_nothing_of_the_next(autojump_clock: MockClock) -> None:
    async with following(4) as (refs, engine, reader):
        await read_all(engine, refs, [0])
        await read_until(engine, 2, refs[1], end=32 * KIB)
        await read_until(engine, 1, refs[0], end=32 * KIB)
    assert reader.ranges("shard-002") == []


async def test_what_is_not_begun_is_released_after_sixteen_others(autojump_clock: MockClock) -> None:
    async with following(40) as (refs, engine, _):
        await read_all(engine, refs, [1, 2])
        assert engine.streams == 1
        await begin_and_leave(engine, refs, range(38, 8, -2))
        assert engine.streams == 1
        await begin_and_leave(engine, refs, [7])
        assert engine.streams == 0
        check_books(engine)


async def test_without_a_sign_that_files_are_read_to_their_end_none_is_followed(autojump_clock: MockClock) -> None:
    async with following(4, SMALL) as (refs, engine, reader):
        await read_all(engine, refs, [0, 1])
    assert reader.ranges("shard-002") == []


async def test_of_the_next_file_the_parts_are_as_small_as_its_reader_is_near(autojump_clock: MockClock) -> None:
    refs = [listed(name, 20 * MIB) for name in ("first", "second")]
    config = ReadaheadConfig(part_size_bytes=4 * MIB, first_window_bytes=40 * MIB, memory_limit_bytes=512 * MIB)
    async with running(config, Files(refs)) as (engine, reader):
        await engine.read(1, refs[0], 0, MIB)
        await settled()
        sizes = [end - start for start, end in sorted(reader.ranges("second"))]
    assert sizes == [2 * MIB] * 3 + [3 * MIB] * 4 + [2 * MIB]


async def test_of_a_file_of_any_size_only_what_is_fetched_is_looked_at(autojump_clock: MockClock) -> None:
    refs = [listed("first", SIZE_BYTES), listed("huge", 1 << 60)]
    async with running(AMPLE, Files(refs)) as (engine, reader):
        reader.holds = lambda key, _start, _end: key == "huge"
        await read_until(engine, 1, refs[0])  # in parts of 64 KiB all of the next would take longer than anybody waits
        assert reader.ranges("huge")
        reader.failures = {("huge", start): UnavailableError("no") for start, _ in reader.ranges("huge")}
        reader.let_go()


async def test_what_was_fetched_ahead_and_is_read_now_is_not_released(autojump_clock: MockClock) -> None:
    async with following(40) as (refs, engine, reader):
        await read_all(engine, refs, [0, 1])
        assert reader.ranges("shard-002")
        assert len(await engine.read(3, refs[2], 0, 4 * KIB)) == 4 * KIB
        await begin_and_leave(engine, refs, range(39, 9, -1))
        assert engine.streams == 1
        engine.release(3)


async def test_of_a_file_that_the_kernel_has_little_more_than_it_asks_for_is_fetched(autojump_clock: MockClock) -> None:
    """A few pages were dropped at its beginning: no sign that all of it is wanted."""
    refs = [listed(name, 96 * MIB) for name in ("first", "other")]
    config = ReadaheadConfig(first_window_bytes=48 * MIB, memory_limit_bytes=64 * MIB)
    async with running(config, Files(refs)) as (engine, reader):
        for inode, ref in enumerate(refs, start=1):
            for offset in range(0, ref.size_bytes, MIB):
                await engine.read(inode, ref, offset, MIB)
            engine.release(inode)
        before = len(reader.gets)
        await engine.read(1, refs[0], 0, MIB)
        await settled()
        assert 0 < sum(end - start for _, start, end in reader.gets[before:]) <= 6 * MIB
        engine.release(1)
