"""One file through the engine: what is fetched when, who shares it, what a failure or a cancellation leaves."""

import pytest
import trio
from trio.testing import MockClock

from fastfuse.errors import ObjectChangedError, ReadError, UnavailableError
from fastfuse.objects import Buffer
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from tests.readahead.books import parts_waiting
from tests.readahead.readers import KIB, MIB, Files, ScriptedReader, content, listed, running, settled

REF = listed("a", 2 * MIB)
BYTES = content(REF)


async def collect(engine: ReadEngine, offset: int, size_bytes: int, into: list[Buffer | Exception]) -> None:
    try:
        into.append(await engine.read(1, REF, offset, size_bytes))
    except ReadError as error:
        into.append(error)


async def test_a_read_within_one_part_is_a_slice_of_it_and_one_across_parts_is_joined() -> None:
    async with running() as (engine, _):
        first = await engine.read(1, REF, 0, 4 * KIB)
        second = await engine.read(1, REF, 4 * KIB, 4 * KIB)
        assert isinstance(first, memoryview)
        assert isinstance(second, memoryview)
        assert first.obj is second.obj
        across = await engine.read(1, REF, 8 * KIB, 32 * KIB)
        assert across == BYTES[8 * KIB : 40 * KIB]
        assert memoryview(across).readonly


async def test_bytes_that_are_there_are_read_without_giving_way_to_another_task() -> None:
    async with running() as (engine, _):
        await engine.read(1, REF, 0, 4 * KIB)
        with trio.testing.assert_no_checkpoints():
            assert await engine.read(1, REF, 4 * KIB, 4 * KIB) == BYTES[4 * KIB : 8 * KIB]


async def test_what_a_sequential_reader_wants_next_is_fetched_while_it_reads() -> None:
    async with running() as (engine, _):
        for offset in range(0, MIB, 16 * KIB):
            assert await engine.read(1, REF, offset, 16 * KIB) == BYTES[offset : offset + 16 * KIB]
            await settled()
        assert (engine.counts.demanded_parts, engine.counts.waits, engine.counts.hits) == (1, 1, 63)


async def test_parts_keep_arriving_ahead_while_the_reader_waits_for_the_first() -> None:
    ref = listed("small", 256 * KIB)
    config = ReadaheadConfig(
        part_size_bytes=256 * KIB, first_part_bytes=16 * KIB, memory_limit_bytes=MIB, max_parts_in_flight=6
    )
    async with running(config) as (engine, reader):
        reader.holds = lambda _key, start, _end: start == 0
        async with trio.open_nursery() as readers:
            readers.start_soon(engine.read, 1, ref, 0, 4 * KIB)
            await settled()
            # This file's share is two connections: one has the demand, and the other took all the rest, one by one.
            assert sum(end - start for start, end in reader.ranges("small")) == ref.size_bytes
            assert engine.pool.parts_in_flight == 1
            reader.let_go()


async def test_a_failed_demand_fails_the_reads_that_need_it_and_the_next_read_starts_clean() -> None:
    async with running() as (engine, reader):
        reader.failures["a", MIB] = ObjectChangedError("replaced")
        results: list[Buffer | Exception] = []
        async with trio.open_nursery() as readers:
            for _ in range(3):
                readers.start_soon(collect, engine, MIB, 4 * KIB, results)
        assert [type(result) for result in results] == [ObjectChangedError] * 3
        assert await engine.read(1, REF, MIB, 4 * KIB) == BYTES[MIB : MIB + 4 * KIB]


async def test_after_a_failure_a_sequential_reader_gets_what_it_asks_for_and_no_readahead() -> None:
    config = ReadaheadConfig(
        part_size_bytes=64 * KIB, first_part_bytes=16 * KIB, memory_limit_bytes=MIB, max_window_bytes=0
    )
    async with running(config) as (engine, reader):
        for offset in range(0, 64 * KIB, 16 * KIB):
            await engine.read(1, REF, offset, 16 * KIB)
        fetched = len(reader.gets)
        reader.failures["a", 64 * KIB] = UnavailableError("503")
        for _ in range(2):
            results: list[Buffer | Exception] = []
            await collect(engine, 64 * KIB, 8 * KIB, results)
        assert results == [BYTES[64 * KIB : 72 * KIB]]
        # A whole part the first time, two pages the second.
        assert [end - start for start, end in reader.ranges("a")[fetched:]] == [16 * KIB, 8 * KIB]


async def test_a_failed_readahead_fails_no_read_and_is_fetched_again_on_demand() -> None:
    async with running() as (engine, reader):
        reader.failures["a", 16 * KIB] = failure = UnavailableError("503")
        await engine.read(1, REF, 0, 4 * KIB)
        await settled()
        assert failure.__traceback__ is None  # nothing is kept until a collection
        assert await engine.read(1, REF, 16 * KIB, 4 * KIB) == BYTES[16 * KIB : 20 * KIB]
        assert [start for start, _ in reader.ranges("a")].count(16 * KIB) == 2


async def test_a_defect_in_the_store_fails_the_read_and_not_the_mount() -> None:
    async with running() as (engine, reader):
        reader.failures["a", MIB] = ZeroDivisionError("defect")
        with pytest.raises(ZeroDivisionError) as caught:
            await engine.read(1, REF, MIB, 4 * KIB)
        assert caught.traceback[-1].name == "get"  # the log shows where it came from
        assert await engine.read(1, REF, 0, 10) == BYTES[:10]


@pytest.mark.parametrize("size_bytes", [4 * KIB, 128 * KIB])
async def test_a_reader_cancelled_while_it_waits_finds_its_bytes_when_it_comes_back(size_bytes: int) -> None:
    async with running() as (engine, reader):
        reader.holds = lambda _key, _start, _end: True
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as readers:
                readers.start_soon(engine.read, 1, REF, MIB, size_bytes)
                await settled()
                scope.cancel()
        assert scope.cancelled_caught
        reader.let_go()
        await settled()
        fetched = list(reader.gets)
        assert await engine.read(1, REF, MIB, size_bytes) == BYTES[MIB : MIB + size_bytes]
        assert reader.gets == fetched


async def test_when_the_owner_cancels_the_fetches_waiting_readers_get_an_error() -> None:
    reader = ScriptedReader()
    reader.holds = lambda _key, _start, _end: True
    config = ReadaheadConfig(part_size_bytes=64 * KIB, first_part_bytes=64 * KIB, memory_limit_bytes=128 * KIB)
    results: list[Buffer | Exception] = []
    async with trio.open_nursery() as readers, trio.open_nursery() as owner:
        engine = ReadEngine(reader, config, owner, lambda: Files([]))
        for index in (4, 8, 12):
            readers.start_soon(collect, engine, index * 64 * KIB, 64 * KIB, results)
        await settled()
        owner.cancel_scope.cancel()
    assert [type(result) for result in results] == [UnavailableError] * 3
    assert engine.pool.reserved_bytes == 0
    assert parts_waiting(engine) == 0


async def test_a_read_larger_than_the_whole_memory_goes_through_it_part_by_part() -> None:
    config = ReadaheadConfig(part_size_bytes=64 * KIB, first_part_bytes=64 * KIB, memory_limit_bytes=128 * KIB)
    async with running(config) as (engine, _):
        results: list[Buffer | Exception] = []
        async with trio.open_nursery() as readers:
            for offset in (0, 0, 4 * KIB, 100):
                readers.start_soon(collect, engine, offset, 2 * MIB, results)
        assert sorted(len(result) for result in results if not isinstance(result, Exception)) == [
            2 * MIB - 4 * KIB,
            2 * MIB - 100,
            2 * MIB,
            2 * MIB,
        ]
        assert all(BYTES.endswith(result) for result in results if not isinstance(result, Exception))


async def test_a_part_that_arrives_after_release_starts_no_more_readahead() -> None:
    ref = listed("small", 256 * KIB)
    config = ReadaheadConfig(
        part_size_bytes=256 * KIB, first_part_bytes=16 * KIB, memory_limit_bytes=MIB, max_parts_in_flight=2
    )
    async with running(config) as (engine, reader):
        reader.holds = lambda _key, start, _end: start > 0
        await engine.read(1, ref, 0, 4 * KIB)
        await settled()
        fetched = list(reader.gets)
        assert len(fetched) < 5
        engine.release(1)
        reader.let_go()
        await settled()
        assert reader.gets == fetched


async def test_a_held_part_is_read_even_if_parts_of_an_idle_file_push_it_out(autojump_clock: MockClock) -> None:
    other = listed("b", 2 * MIB)
    async with running(delay_s=0.1) as (engine, _):
        for offset in range(0, 128 * KIB, 16 * KIB):
            await engine.read(2, other, offset, 16 * KIB)
        await trio.sleep(1)
        dropped = engine.pool.unread_dropped_bytes
        for offset in range(128 * KIB, 2 * MIB - 64 * KIB, 128 * KIB):
            await engine.read(1, REF, offset, 60 * KIB)
            again = offset - 128 * KIB or offset
            assert await engine.read(1, REF, again, 60 * KIB) == BYTES[again : again + 60 * KIB]
        assert engine.pool.unread_dropped_bytes > dropped
