"""Large files that are read one after the other: the next one is on its way before it is opened."""

from collections.abc import Iterable
from dataclasses import replace

from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadEngine
from tests.readahead.readers import KIB, SMALL, Files, ScriptedReader, content, listed, running, settled

# As in a job: whole files are expected from the first on.
CONFIG = replace(SMALL, first_window_bytes=256 * KIB)
SIZE_BYTES = 400 * KIB


def shards(count: int) -> list[ObjectRef]:
    return [listed(f"shard-{index:02}", SIZE_BYTES) for index in range(count)]


async def read_until(engine: ReadEngine, inode: int, ref: ObjectRef, end: int = SIZE_BYTES) -> None:
    engine.open(inode, ref)
    data = b""
    while len(data) < end:
        data += await engine.read(inode, ref, len(data), 16 * KIB)
        await settled()
    assert data == content(ref)[: len(data)]
    engine.release(inode)
    await settled()


async def read_all(engine: ReadEngine, refs: list[ObjectRef], rows: Iterable[int]) -> None:
    for row in rows:
        await read_until(engine, row + 1, refs[row])


async def test_the_third_file_in_a_row_is_on_its_way_when_the_second_ends() -> None:
    refs, reader = shards(4), ScriptedReader()
    async with running(reader, CONFIG, Files(refs)) as engine:
        await read_all(engine, refs, [0])
        assert reader.ranges("shard-01") == []
        await read_all(engine, refs, [1])
        assert min(reader.ranges("shard-02"))[0] == 0
        await read_all(engine, refs, [2])
        # Every byte once.
        assert sum(end - start for start, end in reader.ranges("shard-02")) == SIZE_BYTES
        engine.check_invariants()


async def test_behind_the_last_file_there_is_nothing() -> None:
    refs, reader = shards(3), ScriptedReader()
    async with running(reader, CONFIG, Files(refs)) as engine:
        await read_all(engine, refs, [0, 1, 2])
    assert sum(end - start for _, start, end in reader.gets) == 3 * SIZE_BYTES


async def test_files_in_no_order_are_not_followed_by_others() -> None:
    refs, reader = shards(8), ScriptedReader()
    async with running(reader, CONFIG, Files(refs)) as engine:
        await read_all(engine, refs, [6, 3, 0, 5, 2])
    assert {key for key, _, _ in reader.gets} == {f"shard-{row:02}" for row in (6, 3, 0, 5, 2)}


async def test_who_stops_in_the_middle_of_a_file_has_fetched_nothing_of_the_next() -> None:
    refs, reader = shards(4), ScriptedReader()
    async with running(reader, CONFIG, Files(refs)) as engine:
        await read_all(engine, refs, [0])
        await read_until(engine, 2, refs[1], end=32 * KIB)
    assert reader.ranges("shard-02") == []


async def test_what_is_not_opened_is_given_up_after_sixteen_others() -> None:
    refs, reader = shards(40), ScriptedReader()
    async with running(reader, CONFIG, Files(refs)) as engine:
        await read_all(engine, refs, [0, 1])
        assert engine.statistics().open_files == 1
        for row in range(38, 8, -2):
            engine.open(row + 1, refs[row])
            engine.release(row + 1)
        assert engine.statistics().open_files == 1
        engine.open(8, refs[7])
        engine.release(8)
        assert engine.statistics().open_files == 0
        engine.check_invariants()


async def test_without_a_sign_that_files_are_read_to_their_end_none_is_followed() -> None:
    refs, reader = shards(4), ScriptedReader()
    async with running(reader, SMALL, Files(refs)) as engine:
        await read_all(engine, refs, [0, 1])
    assert reader.ranges("shard-02") == []
