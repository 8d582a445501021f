from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.sagemaker.pipe.content import File
from fastfuse.sagemaker.pipe.epoch import Lookahead
from tests.fakes import CountingReader
from tests.readahead.books import check_books
from tests.readahead.readers import Files, ScriptedReader, content, listed

KIB = 1 << 10
MIB = 1 << 20
CONNECTIONS = 32
# The engine keeps a quarter for readers of other files.
CONFIG = ReadaheadConfig(
    part_size_bytes=MIB,
    first_part_bytes=256 * KIB,
    memory_limit_bytes=64 * MIB,
    max_window_bytes=40 * MIB,
    max_parts_in_flight=CONNECTIONS * 4 // 3 + 1,
)


class Reading:
    def __init__(self, sizes: Sequence[int], *, delay_s: float = 0.0) -> None:
        self.files = [File(at + 1, listed(f"{at}", size)) for at, size in enumerate(sizes)]
        self.scripted = ScriptedReader(delay_s)
        self.store = CountingReader(self.scripted)

    @asynccontextmanager
    async def ahead(self, files: Sequence[File] | None = None, *, begins: bool = True) -> AsyncIterator[Lookahead]:
        """Look ahead in an epoch, which somebody begins to read, as far as that goes by itself."""
        async with trio.open_nursery() as nursery:
            reader = _Waking(self.store)
            self.engine = ReadEngine(reader, CONFIG, nursery, lambda: Files([]))
            reader.lookahead = lookahead = Lookahead(self.engine, CONFIG)
            nursery.start_soon(lookahead.run, self.files if files is None else files)
            await trio.testing.wait_all_tasks_blocked()
            if begins:
                lookahead.begin()
            yield lookahead
            nursery.cancel_scope.cancel()

    async def read(self, lookahead: Lookahead, file: File) -> bytes:
        pieces: list[bytes] = []

        async def keep(piece: Buffer) -> None:
            pieces.append(bytes(piece))

        await lookahead.read(file, keep)
        return b"".join(pieces)

    async def fetched_bytes(self) -> int:
        """Return how much has been fetched once nothing more is."""
        await trio.testing.wait_all_tasks_blocked()
        return sum(end - start for _, start, end in self.store.calls)


class _Waking:
    def __init__(self, reader: CountingReader) -> None:
        self._reader = reader
        self.lookahead: Lookahead | None = None

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        try:
            return await self._reader.get(ref, start, end)
        finally:
            if self.lookahead is not None:
                self.lookahead.wake()

    async def aclose(self) -> None:
        await self._reader.aclose()


async def test_small_files_are_fetched_with_all_connections(autojump_clock: trio.testing.MockClock) -> None:
    reading = Reading([20 * KIB] * 3000, delay_s=0.02)
    async with reading.ahead() as lookahead:
        for file in reading.files:
            assert await reading.read(lookahead, file) == content(file.ref)
            lookahead.done(file)
    assert reading.store.most_in_flight == CONNECTIONS
    # Rounds of 32, and a few at the beginning with which connections are not used yet.
    assert trio.current_time() < 0.02 * (3000 / CONNECTIONS + 4)
    assert len(reading.store.calls) == 3000


@pytest.mark.parametrize("lost_files", [1, 20, 60])
async def test_what_is_still_held_of_the_last_epoch_is_kept_until_it_is_read_again(
    autojump_clock: trio.testing.MockClock, lost_files: int
) -> None:
    # The engine holds 1,024 parts that were read, of 64 KiB each in the mean.
    reading = Reading([KIB] * (1024 + lost_files), delay_s=0.02)
    files = reading.files * 2
    async with reading.ahead(files) as lookahead:
        for file in files:
            assert await reading.read(lookahead, file) == content(file.ref)
            lookahead.done(file)
    assert trio.current_time() < 0.02 * (len(files) / CONNECTIONS + 8)


async def test_parts_of_the_next_objects_are_on_their_way_while_one_is_read() -> None:
    reading = Reading([3 * MIB] * 20)
    reading.scripted.holds = lambda _key, _start, _end: True
    async with reading.ahead():
        await trio.testing.wait_all_tasks_blocked()
        # The first ones, before anything has arrived; how many the engine judges, by the memory that is left.
        fetched_bytes = dict.fromkeys(range(20), 0)
        for key, start, end in reading.store.calls:
            fetched_bytes[int(key)] += end - start
        whole = [key for key, size_bytes in fetched_bytes.items() if size_bytes == 3 * MIB]
        assert whole == [*range(len(whole))]
        assert len(whole) > 3
        assert not any(list(fetched_bytes.values())[len(whole) + 1 :])
        assert reading.store.in_flight > CONNECTIONS // 2


async def test_before_anybody_reads_no_more_is_fetched_than_may_be_wasted() -> None:
    reading = Reading([MIB] * 60)
    async with reading.ahead(begins=False) as lookahead:
        assert await reading.fetched_bytes() == CONFIG.memory_limit_bytes // 16
        lookahead.begin()
        assert await reading.fetched_bytes() == CONFIG.max_window_bytes


async def test_no_more_than_a_window_is_ahead_of_who_reads_slowly() -> None:
    reading = Reading([MIB] * 60)
    async with reading.ahead() as lookahead:
        for place, file in enumerate(reading.files[:5], 1):
            await reading.read(lookahead, file)
            lookahead.done(file)
            assert await reading.fetched_bytes() == place * MIB + CONFIG.max_window_bytes


async def test_a_file_may_be_read_twice_and_come_twice() -> None:
    reading = Reading([2 * MIB, 5 * MIB])
    files = [reading.files[at] for at in (0, 1, 0, 0)]
    async with reading.ahead(files) as lookahead:
        for file in files:
            assert await reading.read(lookahead, file) == content(file.ref)
            assert await reading.read(lookahead, file) == content(file.ref)
            lookahead.done(file)
        assert reading.engine.streams == 0


async def test_an_epoch_that_is_left_early_leaves_no_file_open() -> None:
    reading = Reading([MIB] * 20)
    async with reading.ahead() as lookahead:
        await reading.read(lookahead, reading.files[0])
        await trio.testing.wait_all_tasks_blocked()
        assert reading.engine.streams > 10
        lookahead.close()
        assert reading.engine.streams == 0


@example([1, 0, 2 * MIB, 0, 0, 0, 0, 0, 1], [0, 2, 2, 0, 8, 0], False)
@given(st.lists(st.integers(0, 3 * MIB), max_size=12), st.lists(st.integers(0, 11), max_size=30), st.booleans())
def test_whatever_is_ahead_every_byte_comes_in_its_place(sizes: list[int], order: list[int], is_late: bool) -> None:
    async def check() -> None:
        reading = Reading(sizes)
        files = [reading.files[at] for at in order if at < len(sizes)]
        async with reading.ahead(files if not is_late else []) as lookahead:
            for file in files:
                assert await reading.read(lookahead, file) == content(file.ref)
                lookahead.done(file)
                check_books(reading.engine)
            assert reading.engine.streams == 0

    trio.run(check)


async def test_no_more_tiny_files_are_open_at_a_time_than_connections_need() -> None:
    reading, most = Reading([10] * 2000), 2 * CONFIG.max_parts_in_flight
    async with reading.ahead() as lookahead:
        await trio.testing.wait_all_tasks_blocked()
        assert reading.engine.streams == most
        await reading.read(lookahead, reading.files[0])
        lookahead.done(reading.files[0])
        await trio.testing.wait_all_tasks_blocked()
        assert reading.engine.streams == most
        assert len(reading.store.calls) == most + 1


async def test_a_reader_waits_while_nothing_is_there_for_it(autojump_clock: trio.testing.MockClock) -> None:
    reading = Reading([MIB, MIB], delay_s=10.0)
    async with reading.ahead() as lookahead, trio.open_nursery() as nursery:

        def told() -> tuple[bool, float]:
            return lookahead.is_waiting, lookahead.waited_s

        began_s = trio.current_time()
        assert told() == (False, 0.0)
        nursery.start_soon(reading.read, lookahead, reading.files[0])
        await trio.sleep(4)
        assert told() == (True, trio.current_time() - began_s)
        await trio.sleep(60)
        is_waiting, waited_s = told()
        assert not is_waiting
        assert 4 < waited_s <= 10
        # The next one came meanwhile.
        lookahead.done(reading.files[0])
        await reading.read(lookahead, reading.files[1])
        assert told() == (False, waited_s)
