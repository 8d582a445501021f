"""The engine over many files: identity, fairness, the limit, and the same bytes whatever happens in between."""

import random
from dataclasses import replace
from functools import partial

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fastfuse.errors import UnavailableError
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.page_cache import Delivered
from fastfuse.readahead.pool import PartPool
from tests.readahead.books import check_books
from tests.readahead.readers import (
    KIB,
    MIB,
    SMALL,
    BeginningReader,
    ScriptedReader,
    content,
    listed,
    running,
    settled,
)


async def test_a_zero_byte_file_is_empty_without_a_request() -> None:
    """Semantics D4."""
    async with running() as (engine, reader):
        assert await engine.read(1, listed("empty", 0), 0, 4096) == b""
        assert reader.gets == []
        assert engine.streams == 0


async def test_a_read_is_cut_at_the_end_of_the_file_and_empty_behind_it() -> None:
    ref = listed("a", 100_001)
    async with running() as (engine, _):
        assert await engine.read(1, ref, 100_000, 4096) == content(ref)[-1:]
        assert await engine.read(1, ref, 100_001, 4096) == b""
        assert await engine.read(1, ref, 1 << 40, 4096) == b""
        assert await engine.read(1, ref, 0, 1 << 20) == content(ref)


async def test_what_is_certain_to_be_read_is_fetched_on_command_and_once() -> None:
    ref = listed("a", 256 * KIB)
    async with running() as (engine, reader):
        assert engine.fetch(1, ref, 64 * KIB, 128 * KIB)
        assert engine.fetch(1, ref, 64 * KIB, 128 * KIB)
        assert engine.fetch(1, ref, 0, 128 * KIB)
        await settled()
        assert sorted(reader.gets) == [("a", 0, 64 * KIB), ("a", 64 * KIB, 128 * KIB)]
        assert await engine.read(1, ref, 0, 128 * KIB) == content(ref)[: 128 * KIB]
        assert engine.counts.demanded_parts == 0
        engine.release(1)
        assert engine.streams == 0


async def test_find_tells_how_a_read_would_find_its_bytes_and_changes_nothing() -> None:
    ref = listed("a", 256 * KIB)
    async with running() as (engine, reader):
        reader.holds = lambda _key, start, _end: start == 64 * KIB
        assert engine.fetch(1, ref, 0, 64 * KIB)
        assert engine.fetch(1, ref, 64 * KIB, 128 * KIB)
        await settled()
        assert engine.find(1, ref, 0, 64 * KIB) == "hit"
        assert engine.find(1, ref, 256 * KIB, 4096) == "hit"
        assert engine.find(1, ref, 32 * KIB, 64 * KIB) == "ahead"
        assert engine.find(1, ref, 96 * KIB, 64 * KIB) == "waited"
        assert engine.find(2, listed("b", 4096), 0, 4096) == "waited"
        assert engine.find(1, listed("a", 256 * KIB, etag='"v2"'), 0, 4096) == "waited"
        assert len(reader.gets) == 2
        assert engine.streams == 1


async def test_a_fetch_on_command_is_refused_where_it_would_be_at_the_expense_of_others() -> None:
    async with running() as (engine, reader):
        reader.holds = lambda _key, _start, _end: True
        files = [(inode, listed(f"{inode}", 64 * KIB)) for inode in range(1, 20)]
        granted = [inode for inode, ref in files if engine.fetch(inode, ref, 0, 64 * KIB)]
        # Three quarters of the memory and of the connections.
        assert granted == [*range(1, 13)]
        reader.let_go()
        await settled()
        engine.release(1)
        assert engine.fetch(13, files[12][1], 0, 64 * KIB)


async def test_another_version_under_the_same_inode_is_read_afresh_and_a_reader_of_the_old_one_gets_that() -> None:
    """Semantics D1: after the table was swapped an inode may mean another object; nothing of the old one is served."""
    old, new = listed("a", 64 * KIB), listed("a", 64 * KIB, etag='"v2"')
    results = {}

    async def read_old(engine: ReadEngine) -> None:
        results["old"] = await engine.read(1, old, 0, 64 * KIB)

    async with running() as (engine, reader):
        reader.holds = lambda _key, _start, _end: True
        async with trio.open_nursery() as readers:
            readers.start_soon(read_old, engine)
            await settled()
            reader.holds = lambda _key, _start, _end: False
            assert await engine.read(1, new, 0, 64 * KIB) == content(new)
            reader.let_go()
        assert results == {"old": content(old)}


async def test_one_stalled_object_delays_no_other_file(autojump_clock: MockClock) -> None:
    """Semantics D6: with all of its window stuck, another file is read with readahead and in the usual time."""
    stalled, healthy = listed("stalled", 8 * MIB), listed("healthy", 2 * MIB)
    async with running(delay_s=0.1) as (engine, reader):
        for offset in range(0, MIB, 16 * KIB):
            await engine.read(1, stalled, offset, 16 * KIB)
        reader.holds = lambda key, _start, _end: key == "stalled"
        async with trio.open_nursery() as readers:
            readers.start_soon(engine.read, 1, stalled, 7 * MIB, 16 * KIB)
            readers.start_soon(engine.read, 1, stalled, 3 * MIB, 64 * KIB)
            await trio.sleep(1)
            began = trio.current_time()
            for offset in range(0, 2 * MIB, 16 * KIB):
                await engine.read(2, healthy, offset, 16 * KIB)
            # 128 requests; without any readahead each part of 64 KiB would be 0.1 s: 3.4 s.
            assert trio.current_time() - began < 2.5
            reader.let_go()


async def random_reader(engine: ReadEngine, reader: ScriptedReader, inode: int, seed: int, limit_bytes: int) -> None:
    """Reads sequentially, at random, across ends; some tasks are cancelled on the way and some fetches fail."""
    choices = random.Random(seed)
    ref = listed(f"file-{inode}", 700 * KIB + inode)
    expected = content(ref)
    offset = 0
    for _ in range(30):
        if choices.random() < 0.3:
            offset = choices.randrange(ref.size_bytes)
        size_bytes = choices.choice([1, 4 * KIB, 32 * KIB, 128 * KIB])
        if choices.random() < 0.05:
            reader.failures[ref.key, offset - offset % 4096] = UnavailableError("503")
        with trio.move_on_after(choices.choice([0.01, 10, 10, 10])):
            try:
                got = await engine.read(inode, ref, offset, size_bytes)
                assert got == expected[offset : offset + size_bytes]
            except UnavailableError:
                pass
        check_books(engine)
        pool = engine.pool
        assert reader.in_flight_bytes <= pool.reserved_bytes
        assert pool.reserved_bytes + pool.held_bytes <= limit_bytes
        offset = min(offset + size_bytes, ref.size_bytes - 1)
        if choices.random() < 0.05:
            engine.release(inode)
        await trio.sleep(choices.choice([0, 0, 0.03]))


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1 << 30),
    readers=st.integers(1, 12),
    limit_parts=st.sampled_from([2, 3, 8, 64]),
    begins=st.booleans(),
)
def test_any_mixture_of_readers_gets_its_bytes_and_the_memory_never_passes_the_limit(
    seed: int, readers: int, limit_parts: int, begins: bool
) -> None:
    config = ReadaheadConfig(
        part_size_bytes=64 * KIB,
        first_part_bytes=16 * KIB,
        max_window_bytes=512 * KIB,
        memory_limit_bytes=limit_parts * 64 * KIB,
        max_parts_in_flight=8,
    )

    async def main() -> None:
        async with running(config, delay_s=0.02) as (engine, reader), trio.open_nursery() as tasks:
            if begins:
                outcome = partial(random.Random(seed).choice, ["right", "right", "in vain", "refused", "raises"])
                engine.fetches.begin = BeginningReader(reader, tasks, outcome).begin
            for number in range(readers):
                tasks.start_soon(random_reader, engine, reader, number % 4, seed + number, config.memory_limit_bytes)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_parts_that_take_no_task_are_begun_at_once_and_left_to_the_reader_where_that_fails() -> None:
    ref = listed("a", 256 * KIB)
    async with running() as (engine, reader), trio.open_nursery() as nursery:
        outcomes = ["right", "in vain", "refused", "raises", "asked once too often"]
        beginning = BeginningReader(reader, nursery, lambda: outcomes.pop(0))
        engine.fetches.begin = beginning.begin
        for start in range(0, 256 * KIB, 64 * KIB):
            assert engine.fetch(1, ref, start, start + 64 * KIB)
        assert beginning.begun == [("a", 0, 64 * KIB), ("a", 64 * KIB, 128 * KIB)]
        assert await engine.read(1, ref, 0, 256 * KIB) == content(ref)
        assert {start for _, start, _ in reader.gets} == {64 * KIB, 128 * KIB, 192 * KIB}
        assert len(reader.gets) == 3
        assert len(outcomes) == 1


async def test_what_is_begun_ahead_without_a_task_does_not_overtake_the_part_that_a_reader_waits_for() -> None:
    ref, before, config = listed("a", MIB), list[int](), replace(SMALL, first_window_bytes=256 * KIB)
    async with running(config) as (engine, reader), trio.open_nursery() as nursery:

        def outcome() -> str:
            before.append(len(reader.gets))
            return "refused" if len(reader.gets) == 0 else "right"

        engine.fetches.begin = BeginningReader(reader, nursery, outcome).begin
        assert await engine.read(1, ref, 0, 4 * KIB) == content(ref)[: 4 * KIB]
        assert reader.gets[0][1] == 0
        assert len(before) > 4
        assert 0 not in before[2:]  # it is offered twice


async def test_a_part_that_had_to_wait_for_room_takes_no_task_longer_than_that() -> None:
    a, b = listed("a", 64 * KIB), listed("b", 64 * KIB)
    config = replace(SMALL, memory_limit_bytes=2 * 64 * KIB, max_parts_in_flight=1, max_window_bytes=0)
    async with running(config) as (engine, reader), trio.open_nursery() as nursery:
        beginning = BeginningReader(reader, nursery, lambda: "right")
        engine.fetches.begin = beginning.begin
        async with trio.open_nursery() as reads:
            for inode, ref in enumerate((a, b), 1):
                reads.start_soon(engine.read, inode, ref, 4 * KIB, 4 * KIB)
        assert sorted({key for key, *_ in beginning.begun}) == ["a", "b"]
        assert not reader.gets


async def test_fetches_begin_in_the_order_in_which_they_are_started() -> None:
    # trio turns every second batch round, by chance.
    for _ in range(20):
        begun: list[int] = []

        async def fetch(number: int, begun: list[int] = begun) -> None:
            begun.append(number)
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            fetches = Fetches(ScriptedReader(), PartPool(ReadaheadConfig()), Delivered(), nursery, ReadaheadConfig())
            for number in range(10):
                fetches.start(partial(fetch, number))
        assert begun == [*range(10)]


async def test_a_stream_ends_whichever_of_the_last_reads_is_answered_last() -> None:
    ref = listed("shard", 3 * MIB)
    async with running() as (engine, reader):
        reader.holds = lambda _key, _start, _end: True
        async with trio.open_nursery() as readers:
            for offset in range(0, ref.size_bytes, MIB):
                readers.start_soon(engine.read, 1, ref, offset, MIB)
            await settled()
            reader.let_go()
        assert engine.streams == 0


async def test_a_look_at_the_footer_does_not_end_the_stream_of_its_reader() -> None:
    ref = listed("archive", 4 * MIB)
    async with running() as (engine, _):
        await engine.read(1, ref, ref.size_bytes - 64 * KIB, 64 * KIB)
        assert engine.streams == 1
        for offset in range(0, ref.size_bytes, MIB):
            await engine.read(1, ref, offset, MIB)
        assert engine.streams == 0
