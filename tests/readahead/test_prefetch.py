"""Small files through the engine: one GET each, the next ones ahead, and never at the expense of anybody."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fastfuse.errors import ObjectDeniedError, UnavailableError
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine, orders
from fastfuse.readahead.shelves import Threads
from tests.readahead.books import check_books, expected_bytes
from tests.readahead.readers import KIB, MIB, Files, ScriptedReader, content, listed, running, settled

KB = 1000
# As the default, but for a memory that 200 of the small files fill.
CONFIG = ReadaheadConfig(
    part_size_bytes=256 * KIB, first_part_bytes=64 * KIB, max_window_bytes=8 * MIB, memory_limit_bytes=8 * MIB
)


def _only(held: str) -> Callable[[str, int, int], bool]:
    return lambda key, _start, _end: key == held


def dataset(count: int, size_bytes: int = 39 * KB) -> list[ObjectRef]:
    return [listed(f"file-{index:05}", size_bytes) for index in range(count)]


async def read_whole(engine: ReadEngine, inode: int, ref: ObjectRef) -> None:
    """Read as the kernel does that keeps nothing for another epoch."""
    await trio.lowlevel.checkpoint()
    # Bytes, as a view is compared byte by byte.
    assert bytes(await engine.read(inode, ref, 0, ref.size_bytes)) == content(ref)


async def read_all(engine: ReadEngine, refs: list[ObjectRef], inodes: list[int], readers: int = 1) -> None:
    async def read_some(mine: list[int]) -> None:
        for inode in mine:
            await read_whole(engine, inode, refs[inode - 1])

    async with trio.open_nursery() as nursery:
        for reader in range(readers):
            nursery.start_soon(read_some, inodes[reader::readers])


@asynccontextmanager
async def serving(
    count: int, config: ReadaheadConfig = CONFIG, *, size_bytes: int = 39 * KB, delay_s: float = 0.0
) -> AsyncIterator[tuple[list[ObjectRef], ReadEngine, ScriptedReader]]:
    refs = dataset(count, size_bytes)
    async with running(config, Files(refs), delay_s=delay_s) as (engine, reader):
        yield refs, engine, reader


def in_order(refs: Sequence[ObjectRef]) -> list[int]:
    return list(range(1, len(refs) + 1))


def shuffled(refs: Sequence[ObjectRef], seed: int = 0) -> list[int]:
    return random.Random(seed).sample(in_order(refs), len(refs))


def keys_twice(reader: ScriptedReader) -> list[str]:
    keys = [key for key, _, _ in reader.gets]
    return sorted({key for key in keys if keys.count(key) > 1})


@pytest.mark.parametrize("offset", [0, 4 * KIB, 190 * KIB])
async def test_a_first_read_of_some_of_a_small_file_is_one_get_of_all_of_it(offset: int) -> None:
    ref = listed("a", 200 * KIB)
    async with running(CONFIG) as (engine, reader):
        assert await engine.read(1, ref, offset, 4 * KIB) == content(ref)[offset : offset + 4 * KIB]
        assert reader.gets == [("a", 0, 200 * KIB)]


async def test_files_that_are_no_objects_are_read_when_they_are_begun_and_never_before() -> None:
    refs = [ObjectRef("", f"made-{index:02}", 39 * KB, '"made-1"') for index in range(40)]
    async with running(CONFIG, Files(refs)) as (engine, reader):
        for inode in in_order(refs)[:20]:
            await read_whole(engine, inode, refs[inode - 1])
        await engine.new_order().announce(in_order(refs))
        await settled()
        assert [key for key, _, _ in reader.gets] == [ref.key for ref in refs[:20]]


async def test_all_of_a_file_that_was_expected_is_handed_out_at_its_first_read_and_not_kept() -> None:
    async with serving(2) as (refs, engine, reader):
        await engine.new_order().announce([1])
        await settled()
        assert await engine.read(1, refs[0], 0, 128 * KIB) == content(refs[0])
        assert len(reader.gets) == 1
        assert (engine.pool.held_bytes, engine.streams, engine.counts.waits) == (0, 0, 0)
        assert engine.pool.unread_dropped_bytes == 0
        check_books(engine)
        # The kernel has dropped it already.
        assert await engine.read(1, refs[0], 0, 39 * KB) == content(refs[0])
        assert reader.gets == [(refs[0].key, 0, 39 * KB)] * 2


async def test_what_was_expected_and_is_on_its_way_is_waited_for_and_not_fetched_again() -> None:
    async with serving(1) as (refs, engine, reader):
        reader.holds = lambda _key, _start, _end: True
        await engine.new_order().announce([1])
        async with trio.open_nursery() as readers:
            readers.start_soon(read_whole, engine, 1, refs[0])
            await settled()
            reader.let_go()
        assert len(reader.gets) == 1


async def test_what_was_expected_is_kept_for_a_reader_that_takes_it_in_pieces() -> None:
    async with serving(1) as (refs, engine, reader):
        await engine.new_order().announce([1])
        await settled()
        for offset in range(0, 39 * KB, 4 * KIB):
            assert await engine.read(1, refs[0], offset, 4 * KIB) == content(refs[0])[offset : offset + 4 * KIB]
        assert len(reader.gets) == 1


async def test_what_was_expected_of_another_version_is_not_handed_out() -> None:
    """Semantics D1"""
    small, changed = listed("a", 39 * KB), listed("a", 39 * KB, etag='"v2"')
    async with running(CONFIG, Files([small])) as (engine, _):
        await engine.new_order().announce([1])
        await settled()
        assert await engine.read(1, changed, 0, 39 * KB) == content(changed)


async def test_what_the_kernel_forgets_is_not_kept_whether_it_was_read_or_not() -> None:
    small, large = dataset(1)[0], listed("large", 2 * MIB)
    async with running(CONFIG, Files([small, large])) as (engine, _):
        await engine.read(1, small, 0, 4 * KIB)
        await engine.read(2, large, 0, MIB)
        await settled()
        assert engine.streams == 2
        for inode in (1, 2, 3):
            engine.forget(inode)
        assert (engine.streams, engine.pool.held_bytes) == (0, 0)


async def test_a_file_that_the_kernel_forgets_while_it_is_read_or_expected_is_kept() -> None:
    """The kernel forgets the inode that a listing showed, and looks it up again to read it."""
    async with serving(2) as (refs, engine, reader):
        reader.holds = lambda _key, _start, _end: True
        await engine.new_order().announce([2])
        async with trio.open_nursery() as readers:
            readers.start_soon(read_whole, engine, 1, refs[0])
            await settled()
            for inode in (1, 2):
                engine.forget(inode)
            reader.let_go()
        await settled()
        await read_whole(engine, 2, refs[1])
        assert len(reader.gets) == 2


async def test_what_the_kernel_has_forgotten_is_fetched_ahead_again() -> None:
    async with serving(300) as (refs, engine, reader):
        await read_all(engine, refs, in_order(refs))
        assert len(reader.gets) == 300
        engine.forget(7)
        await engine.new_order().announce(in_order(refs))
        await settled()
        assert keys_twice(reader) == [refs[6].key]


async def test_a_refresh_leaves_nothing_of_what_it_took_away() -> None:
    """Semantics L6"""
    refs = dataset(40)
    tables = [Files(refs)]
    async with running(CONFIG, lambda: tables[-1]) as (engine, _):
        await engine.new_order().announce([30])
        for inode in (1, 20):
            await engine.read(inode, refs[inode - 1], 0, 4 * KIB)
        await settled()
        tables.append(Files(refs[:10]))
        engine.refreshed()
        check_books(engine)
        assert engine.streams == 1
        assert await engine.read(1, refs[0], 4 * KIB, 4 * KIB) == content(refs[0])[4 * KIB : 8 * KIB]
        engine.forget(1)
        await settled()
        assert engine.pool.held_bytes == 0


async def test_a_data_set_that_the_kernel_could_not_keep_is_fetched_ahead_again(autojump_clock: MockClock) -> None:
    async with serving(500, delay_s=0.02) as (refs, engine, _):
        await read_all(engine, refs, in_order(refs))
        began_s = trio.current_time()
        await read_all(engine, refs, in_order(refs))
        assert trio.current_time() - began_s < 500 * 0.02 / 10


async def test_what_was_announced_is_fetched_ahead_though_the_kernel_was_believed_to_have_it(
    autojump_clock: MockClock,
) -> None:
    async with serving(500, delay_s=0.02) as (refs, engine, _):
        await read_all(engine, refs, shuffled(refs))
        await engine.new_order().announce(shuffled(refs, 1))
        await settled()
        began_s = trio.current_time()
        await read_all(engine, refs, shuffled(refs, 1))
        assert trio.current_time() - began_s < 500 * 0.02 / 10


async def test_an_announced_epoch_costs_no_request_for_what_the_kernel_has_whatever_it_has_lost_before() -> None:
    async with serving(500) as (refs, engine, reader):
        for _ in range(2):
            await read_all(engine, refs, shuffled(refs))
        before = len(reader.gets)
        assert before > 900
        await engine.new_order().announce(shuffled(refs, 1))
        await settled()
        assert len(reader.gets) == before


# Room for 1,000 of the small files that nobody has asked for yet.
EVERY = replace(CONFIG, memory_limit_bytes=160 * MIB, expects_every_file=True)
# A quarter of it is room for 107 of the small files.
TIGHT = replace(EVERY, memory_limit_bytes=16 * MIB)


async def test_a_shuffled_epoch_of_all_files_takes_a_third_of_its_round_trips(autojump_clock: MockClock) -> None:
    async with serving(1000, EVERY, delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, shuffled(refs), readers=16)
        assert trio.current_time() < 1000 / 16 * 0.02 / 3
        assert len(reader.gets) == 1000
        assert keys_twice(reader) == []


async def test_where_nobody_has_said_so_it_takes_half_of_them(autojump_clock: MockClock) -> None:
    async with serving(1000, replace(EVERY, expects_every_file=False), delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, shuffled(refs), readers=16)
        assert trio.current_time() < 1000 / 16 * 0.02 / 2
        assert len(reader.gets) == 1000
        assert keys_twice(reader) == []


@pytest.mark.parametrize("expects_every_file", [False, True])
async def test_guesses_are_made_for_a_near_service_only_where_somebody_has_said_so(
    autojump_clock: MockClock, expects_every_file: bool
) -> None:
    config = replace(EVERY, expects_every_file=expects_every_file)
    async with serving(1000, config, delay_s=0.004) as (refs, engine, reader):
        await read_all(engine, refs, shuffled(refs), readers=16)
        assert (engine.counts.prefetched_parts > 500) is expects_every_file
        assert len(reader.gets) == 1000


async def test_where_nobody_has_said_so_a_tenth_at_random_causes_nothing(autojump_clock: MockClock) -> None:
    async with serving(1000, replace(EVERY, expects_every_file=False), delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, shuffled(refs)[:100], readers=16)
        assert len(reader.gets) == 100


async def test_readers_in_the_order_of_the_listing_cause_no_more_than_without_it(autojump_clock: MockClock) -> None:
    async with serving(1000, EVERY, delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, in_order(refs)[:300])
        await trio.sleep(1)
        late = [key for key, _, _ in reader.gets if key > f"file-{300 + 512 + 16:05}"]
        assert late == []


async def test_a_refresh_amid_a_shuffled_epoch_costs_no_file_a_second_get(autojump_clock: MockClock) -> None:
    refs = dataset(1000)
    files, order = Files(refs), shuffled(refs)
    async with running(EVERY, lambda: files, delay_s=0.02) as (engine, reader):
        await read_all(engine, refs, order[:300], readers=16)
        files = Files(refs)
        await read_all(engine, refs, order[300:], readers=16)
        assert keys_twice(reader) == []
        assert len(reader.gets) == 1000


@pytest.mark.parametrize("loses", [False, True], ids=["kept", "lost"])
@pytest.mark.parametrize("config", [CONFIG, EVERY], ids=["listed", "every file"])
async def test_a_file_that_is_denied_is_fetched_ahead_once_and_is_no_sign_that_the_page_cache_loses_files(
    autojump_clock: MockClock, config: ReadaheadConfig, *, loses: bool
) -> None:
    async with serving(600, config, delay_s=0.02) as (refs, engine, reader):
        reader.denied = {ref.key for ref in refs[::2]}

        async def read_some(inodes: Iterable[int]) -> None:
            for inode in inodes:
                for _ in range(2):  # as the kernel does: what it wants to read ahead, and then the one page
                    with suppress(ObjectDeniedError):
                        await read_whole(engine, inode, refs[inode - 1])
                        break

        order = shuffled(refs) if config.expects_every_file else in_order(refs)
        for inodes in ([2, 4] * 8 if loses else [], order, in_order(refs)[::2], in_order(refs)[::2]):
            if len(inodes) == 300 and not loses:
                await engine.new_order().announce(in_order(refs))
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(read_some, inodes[number::8])
        counts = Counter(key for key, _, _ in reader.gets)
        assert max(counts[ref.key] for ref in refs[::2]) <= 3 * 3
        assert loses or {counts[ref.key] for ref in refs[1::2]} == {1}


class Renewed(Files):
    """The table after a refresh that found every object replaced: its inodes begin behind `base`."""

    def __init__(self, refs: Sequence[ObjectRef | None], base: int) -> None:
        super().__init__(refs)
        self._base = base

    def row(self, inode: int) -> int:
        return super().row(inode - self._base)

    def file_at(self, row: int) -> tuple[int, int] | None:
        file = super().file_at(row)
        return None if file is None else (file[0] + self._base, file[1])


async def time_s_of(engine: ReadEngine, refs: list[ObjectRef], inodes: Iterable[int], base: int = 0) -> float:
    began_s = trio.current_time()
    for inode in inodes:
        await read_whole(engine, inode, refs[inode - base - 1])
    return trio.current_time() - began_s


@pytest.mark.parametrize("in_listing_order", [True, False])
async def test_files_fetched_before_a_refresh_that_replaced_them_take_no_room_from_the_new_ones(
    autojump_clock: MockClock, in_listing_order: bool
) -> None:
    old, new = dataset(1000), [listed(f"new-{index:05}", 39 * KB) for index in range(1000)]
    table: Files = Files(old)
    config = replace(TIGHT, expects_every_file=not in_listing_order)
    async with running(config, lambda: table, delay_s=0.02) as (engine, _):
        await read_all(engine, old, in_order(old)[:300] if in_listing_order else shuffled(old)[:100])
        await trio.sleep(1)
        assert expected_bytes(engine) > 100 * 39 * KB
        table = Renewed(new, 1000)
        assert await time_s_of(engine, new, range(1001, 2001), 1000) < 1000 * 0.02 / 20


async def test_files_fetched_before_a_refresh_of_nothing_give_way_to_a_known_order(autojump_clock: MockClock) -> None:
    refs = dataset(1700)
    table = Files(refs)
    async with running(TIGHT, lambda: table, delay_s=0.02) as (engine, _):
        await read_all(engine, refs, shuffled(refs)[:50], readers=16)
        await trio.sleep(1)
        table = Files(refs)
        assert await time_s_of(engine, refs, range(900, 1500)) < 600 * 0.02 / 20


async def test_a_refresh_takes_no_file_from_an_announced_order() -> None:
    refs = dataset(300)
    table = Files(refs)
    async with running(CONFIG, lambda: table) as (engine, reader):
        order = engine.new_order()
        await order.announce(in_order(refs)[:10])
        await settled()
        table = Files(refs)
        # A known order of so many files that there is no room for anything beside it.
        await read_all(engine, refs, in_order(refs)[200:230])
        await settled()
        assert expected_bytes(engine) > CONFIG.memory_limit_bytes // 4 - 39 * KB
        await read_all(engine, refs, in_order(refs)[:10])
        assert keys_twice(reader) == []


@pytest.mark.parametrize("limit_mib", [16, 32])
async def test_a_reader_from_the_first_file_on_finds_guesses(autojump_clock: MockClock, limit_mib: int) -> None:
    async with serving(1700, replace(EVERY, memory_limit_bytes=limit_mib * MIB), delay_s=0.02) as (refs, engine, _):
        await read_all(engine, refs, [inode + 1500 for inode in shuffled(refs[1500:])[:150]], readers=16)
        await trio.sleep(1)
        assert await time_s_of(engine, refs, range(1, 1101)) < 0.56  # without a guess


async def test_what_readers_at_random_have_driven_out_is_made_up_for(autojump_clock: MockClock) -> None:
    refs = [*dataset(1500), *(listed(f"large-{index}", 4 * MIB) for index in range(64))]
    async with running(TIGHT, Files(refs), delay_s=0.02) as (engine, _):
        order = shuffled(refs[:1500])
        for start in range(0, 240, 60):
            await read_all(engine, refs, order[start : start + 60], readers=16)
            await trio.sleep(1)
            assert expected_bytes(engine) > 100 * 39 * KB
            async with trio.open_nursery() as nursery:
                for inode in range(1501, 1565):
                    for offset in random.Random(inode).sample(range(0, 4 * MIB, 256 * KIB), 6):
                        nursery.start_soon(engine.read, inode, refs[inode - 1], offset, 256 * KIB)
            assert expected_bytes(engine) == 0
            for inode in range(1501, 1565):
                engine.release(inode)


async def test_guesses_on_their_way_are_kept_where_giving_them_up_brings_no_room() -> None:
    async with serving(300, replace(EVERY, memory_limit_bytes=32 * MIB), size_bytes=256 * KIB) as (
        refs,
        engine,
        reader,
    ):
        reader.holds = lambda _key, _start, _end: True
        async with trio.open_nursery() as readers:
            for inode in range(100, 292, 12):
                readers.start_soon(read_whole, engine, inode, refs[inode - 1])
            await settled()
            before = expected_bytes(engine)
            assert before == 8 * MIB
            await engine.new_order().announce([250])
            reader.let_go()
        await settled()
        # They landed as guesses, and the last of them gave way then.
        assert reader.gets[-1][0] == refs[249].key
        assert expected_bytes(engine) == before


async def test_an_announced_order_takes_over_what_was_guessed(autojump_clock: MockClock) -> None:
    async with serving(2000, replace(EVERY, memory_limit_bytes=64 * MIB), delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, [inode + 1000 for inode in shuffled(refs[1000:])[:100]])
        await trio.sleep(1)
        guesses = {key for key, _, _ in reader.gets if key < "file-01000"}
        assert len(guesses) > 250
        order = engine.new_order()
        await order.announce([*range(1, 201), *range(700, 1000)])
        await trio.sleep(1)
        await read_all(engine, refs, in_order(refs)[:200])
        assert [key for key in keys_twice(reader) if key <= "file-00199"] == []


async def test_where_most_files_are_never_begun_nothing_is_held_for_them_in_the_end(autojump_clock: MockClock) -> None:
    refs = dataset(3000)
    wanted = [inode for inode in in_order(refs) if inode % 3 == 0]
    async with running(replace(EVERY, memory_limit_bytes=64 * MIB), Files(refs), delay_s=0.02) as (engine, _):
        for seed in range(4):
            await read_all(engine, refs, random.Random(seed).sample(wanted, len(wanted)), readers=16)
        assert expected_bytes(engine) == 0


async def test_a_damaged_table_fails_nobody_who_begins_a_file_and_fetches_nothing_for_him() -> None:
    class Damaged(Files):
        def file_at(self, row: int) -> tuple[int, int] | None:
            raise ValueError(f"row {row} is damaged")

    refs = dataset(200)
    async with running(EVERY, Damaged(refs)) as (engine, reader):
        await read_all(engine, refs, in_order(refs)[:100])
        await read_all(engine, refs, [inode + 100 for inode in shuffled(refs[100:])])
        assert len(reader.gets) == 200


async def test_one_reader_in_listing_order_is_twenty_times_as_fast_as_its_gets(autojump_clock: MockClock) -> None:
    async with serving(2000, ReadaheadConfig(), delay_s=0.02) as (refs, engine, reader):
        await read_all(engine, refs, in_order(refs))
        assert trio.current_time() < 2000 * 0.02 / 20
        assert len(reader.gets) == 2000


async def test_sixteen_shuffled_readers_with_hints_keep_connections_busy(autojump_clock: MockClock) -> None:
    async with serving(1000, ReadaheadConfig(), delay_s=0.02) as (refs, engine, reader):
        order = shuffled(refs)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.new_order().announce, order)
            await settled()
            await read_all(engine, refs, order, readers=16)
        assert trio.current_time() - began_s < 1000 * 0.02 / 48 * 1.05
        assert len(reader.gets) == 1000


async def test_nothing_is_fetched_ahead_while_many_readers_are_faster_by_themselves() -> None:
    refs = dataset(400)
    order = shuffled(refs)
    async with running(CONFIG, Files(refs)) as (engine, reader):
        for number, inode in enumerate(order[:100]):
            engine.note_read(inode, 39 * KB, get_s=0.001, reader_id=number % 16)
        await engine.new_order().announce(order[100:])
        await settled()
        assert reader.gets == []
        for number, inode in enumerate(order[100:200]):  # the service has become slow
            engine.note_read(inode, 39 * KB, get_s=0.02, reader_id=number % 16)
        await settled()
        assert reader.gets[0][0] in {refs[inode - 1].key for inode in order[150:200]}
        assert len(reader.gets) > 10


class KeepingThreads:
    """Threads that fetch files in no time, but for those `refused` or `near`; and what claims files for them."""

    def __init__(self, refs: Sequence[ObjectRef], *, refused: Container[int] = (), near: Container[int] = ()) -> None:
        self.refs, self.refused, self.near = refs, refused, near
        self.kept: dict[int, int] = {}
        self.claimed, self.fetched = set[int](), list[int]()
        self.most_bytes = self.wasted_bytes = 0

    @asynccontextmanager
    async def running(self, config: ReadaheadConfig) -> AsyncIterator[tuple[ReadEngine, ScriptedReader]]:
        async with running(config, Files(self.refs)) as (engine, reader):
            engine.fetch_small_by(self.threads())
            yield engine, reader

    def threads(self) -> Threads:
        return Threads(
            size_of=lambda inode: 0 if inode in self.refused else self.refs[inode - 1].size_bytes,
            is_near=lambda inode: inode in self.near,
            fetch=self._fetch,
            drop=self._drop,
            claim=self.claimed.add,
            release=self.claimed.remove,
            is_read=lambda inode: inode in self.kept,
            held=lambda: (len(self.kept), sum(self.kept.values())),
        )

    def _fetch(self, inode: int, size_bytes: int) -> bool:
        assert inode not in {*self.kept, *self.claimed}
        self.kept[inode] = size_bytes
        self.fetched.append(inode)
        self.most_bytes = max(self.most_bytes, sum(self.kept.values()))
        return True

    def _drop(self, inode: int) -> bool:
        size_bytes = self.kept.pop(inode, 0)
        self.wasted_bytes += size_bytes
        return size_bytes > 0

    async def read(self, engine: ReadEngine, inode: int) -> None:
        if (size_bytes := self.kept.pop(inode, 0)) > 0:
            engine.note_read_ahead(inode, 0, size_bytes, 1, has_waited=False, is_first=True)
        elif inode in self.near:
            engine.note_read(inode, self.refs[inode - 1].size_bytes, None, 1)
        else:
            engine.began(1)
            await read_whole(engine, inode, self.refs[inode - 1])
        await settled()


@pytest.mark.parametrize("is_every_file_read", [False, True])
async def test_small_files_are_left_to_threads_and_to_the_client_where_they_refuse(*, is_every_file_read: bool) -> None:
    threads = KeepingThreads(dataset(400), refused=range(1, 401, 7))
    config = replace(CONFIG, expects_every_file=is_every_file_read)
    async with threads.running(config) as (engine, reader):
        order = shuffled(dataset(400))
        if not is_every_file_read:
            await engine.new_order().announce(order)
        for inode in order:
            await threads.read(engine, inode)
        keys = [*(threads.refs[inode - 1].key for inode in threads.fetched), *(key for key, *_ in reader.gets)]
        assert {*keys} == {ref.key for ref in threads.refs}
        # A guess gives way to files that a few readers in a row seem to come to, and is fetched again.
        assert (len(keys) - 400) * 39 * KB == engine.pool.unread_dropped_bytes + threads.wasted_bytes
        assert threads.wasted_bytes <= (80 * 39 * KB if is_every_file_read else 0)
        assert len(threads.fetched) > 150
        assert threads.kept == {}
        assert threads.most_bytes <= config.memory_limit_bytes // 4
        assert engine.counts.hits >= len(threads.fetched) - threads.wasted_bytes // (39 * KB)


@pytest.mark.parametrize("is_every_file_read", [False, True])
async def test_files_that_are_kept_near_are_left_to_their_readers(*, is_every_file_read: bool) -> None:
    """The tier keeps the first thousand of an announced order, more than may be ahead, and half of the others."""
    refs = dataset(2000)
    order = shuffled(refs)
    near = {*order[:1000], *order[1000::2]}
    threads = KeepingThreads(refs, near=near)
    config = replace(CONFIG, memory_limit_bytes=256 * MIB, expects_every_file=is_every_file_read)
    async with threads.running(config) as (engine, reader):
        if not is_every_file_read:
            await engine.new_order().announce(order)
        for inode in order:
            await threads.read(engine, inode)
        assert not near & {*threads.fetched}
        assert {*threads.fetched} <= {*order} - near
        assert len({*threads.fetched}) > (50 if is_every_file_read else 480)
        assert len(threads.fetched) + len(reader.gets) == 500
        assert (threads.kept, threads.wasted_bytes) == ({}, 0)


async def test_guesses_that_threads_keep_give_way_to_an_order_and_are_adopted_by_it() -> None:
    threads = KeepingThreads(dataset(600))
    async with threads.running(replace(CONFIG, expects_every_file=True)) as (engine, _):
        for inode in range(600, 400, -3):
            await threads.read(engine, inode)
        guessed, share_bytes = {*threads.kept}, CONFIG.memory_limit_bytes // 4
        assert sum(threads.kept.values()) > share_bytes - 100 * KB
        await engine.new_order().announce([*range(300, 320), 2, 1])
        assert threads.wasted_bytes > 0
        for inode in (*range(300, 320), 2, 1):
            await threads.read(engine, inode)
        # The oldest guesses are left, and were adopted: each was fetched once.
        assert [threads.fetched.count(inode) for inode in (1, 2)] == [1, 1]
        assert {*threads.kept} & guessed
        assert threads.most_bytes <= share_bytes
        assert engine.memory()["unread"] == sum(threads.kept.values())


async def test_guesses_go_on_in_the_next_epoch_where_readers_come_before_the_threads() -> None:
    threads = KeepingThreads(dataset(400))
    config = replace(CONFIG, memory_limit_bytes=64 * MIB, expects_every_file=True)
    async with threads.running(config) as (engine, _):
        for epoch in range(1, 3):
            for inode in shuffled(threads.refs, epoch):
                threads.kept.pop(inode, None)  # it was queued
                await threads.read(engine, inode)
            assert len(threads.fetched) > 300 * epoch


async def test_what_threads_could_not_fetch_is_left_to_its_reader_by_every_order() -> None:
    threads = KeepingThreads(dataset(400))
    async with threads.running(CONFIG) as (engine, _):
        for _ in range(2):
            await engine.new_order().announce([30])
            threads.kept.clear()
            engine.lost_ahead(30)
        assert threads.fetched == [30]
        await threads.read(engine, 30)
        engine.forget(30)
        await engine.new_order().announce([30])
        assert threads.fetched == [30, 30]


async def test_what_threads_keep_goes_with_its_order() -> None:
    threads = KeepingThreads(dataset(400))
    async with threads.running(CONFIG) as (engine, _):
        order = engine.new_order()
        await order.announce([1, 2, 3])
        assert [*threads.kept] == [1, 2, 3]
        order.withdraw()
        assert threads.kept == {}
        assert threads.wasted_bytes == 3 * 39 * KB


async def test_who_announces_a_long_order_goes_on_as_soon_as_there_is_room(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_MAX_QUEUED_FILES", 4096)
    refs = dataset(9_000, 100)
    order = shuffled(refs)
    announced, begun, left = 0, 0, []
    async with running(ReadaheadConfig(), Files(refs), delay_s=0.02) as (engine, _):

        async def announce() -> None:
            nonlocal announced
            place = engine.new_order()
            for start in range(0, len(order), 64):
                await place.announce(order[start : start + 64])
                announced = min(start + 64, len(order))

        async def read_some(mine: list[int]) -> None:
            nonlocal begun
            for inode in mine:
                await read_whole(engine, inode, refs[inode - 1])
                begun += 1
                if announced < len(order):
                    left.append(announced - begun)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce)
            await settled()
            for number in range(16):
                nursery.start_soon(read_some, order[number::16])
    # A queue of 4,096 that runs empty leaves a thousand, which are fetched.
    assert len(left) > 3000
    assert min(left) > 3500


async def test_directories_and_files_that_cannot_be_fetched_are_passed_over() -> None:
    archived = ObjectRef("bucket", "archived", 10 * KB, '"v1"', 0, "DEEP_ARCHIVE")
    refs = [*dataset(4), None, listed("empty", 0), archived, listed("large", MIB), listed("next", 39 * KB)]
    async with running(CONFIG, Files(refs)) as (engine, reader):
        for row in range(4):
            ref = refs[row]
            assert ref is not None
            await read_whole(engine, row + 1, ref)
        await settled()
        assert sorted(key for key, _, _ in reader.gets) == [f"file-0000{row}" for row in range(4)] + ["next"]


async def test_a_large_file_that_is_announced_has_its_first_part_when_it_is_begun() -> None:
    ref = listed("large", 2 * MIB)
    async with running(CONFIG, Files([ref])) as (engine, reader):
        await engine.new_order().announce([1])
        await settled()
        assert reader.gets == [("large", 0, 256 * KIB)]
        assert await engine.read(1, ref, 0, 64 * KIB) == content(ref)[: 64 * KIB]
        assert expected_bytes(engine) == 0
        assert engine.counts.waits == 0


async def test_two_orders_take_turns() -> None:
    async with serving(2000, ReadaheadConfig()) as (_, engine, reader):
        reader.holds = lambda _key, _start, _end: True
        for inodes in (range(1, 1001), range(1001, 2001)):
            await engine.new_order().announce(inodes)
        await settled()
        assert {key < "file-01000" for key, _, _ in reader.gets} == {True}
        reader.let_go()
        await settled()
        following = [key < "file-01000" for key, _, _ in reader.gets[48:148]]
        assert 40 <= sum(following) <= 60


async def test_inodes_that_are_no_files_cost_nothing() -> None:
    refs: list[ObjectRef | None] = [None, listed("empty", 0), listed("a", 39 * KB)]
    async with running(CONFIG, Files(refs)) as (engine, reader):
        await engine.new_order().announce([*range(1000, 9000), 1, 2, 3])
        await settled()
        assert reader.gets == [("a", 0, 39 * KB)]


async def test_an_announcement_that_is_cancelled_while_it_waits_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "_MAX_QUEUED_FILES", 4096)
    async with serving(9000, size_bytes=5 * KB) as (refs, engine, _):
        order = engine.new_order()
        await order.announce(in_order(refs)[:8999])
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(order.announce, [9000])
                await settled()
                scope.cancel()
        assert order.decisions.is_full
        order.withdraw()
        await order.announce([1])
        await settled()
        assert expected_bytes(engine) == 5 * KB


async def test_a_withdrawn_order_frees_its_memory_and_is_fetched_no_further() -> None:
    async with serving(1000) as (refs, engine, reader):
        order = engine.new_order()
        await order.announce(in_order(refs))
        await settled()
        assert 0 < expected_bytes(engine) <= CONFIG.memory_limit_bytes // 4
        order.withdraw()
        assert engine.pool.held_bytes == 0
        count = len(reader.gets)
        await read_whole(engine, 900, refs[899])
        assert len(reader.gets) == count + 1


async def test_files_to_come_of_a_reader_that_has_gone_give_way_to_those_of_another() -> None:
    async with serving(5000, size_bytes=200 * KIB) as (refs, engine, reader):
        await read_all(engine, refs, list(range(1, 11)))
        await read_all(engine, refs, list(range(1001, 4001, 11)))
        await read_all(engine, refs, list(range(4501, 4509)))
        await settled()
        assert set(reader.ranges(refs[4508].key)) == {(0, 200 * KIB)}


async def test_a_reader_that_has_gone_while_there_was_no_room_for_it_takes_none_of_what_it_gives_back() -> None:
    async with serving(5000, size_bytes=200 * KIB) as (refs, engine, reader):
        await read_all(engine, refs, list(range(1, 11)))
        await settled()
        fetched = len(reader.gets)
        for _ in range(300):
            await read_whole(engine, 3001, refs[3000])
        await settled()
        assert len(reader.gets) == fetched + 300
        await read_all(engine, refs, list(range(4501, 4509)))
        await settled()
        assert reader.ranges(refs[4508].key) == [(0, 200 * KIB)]


async def test_an_announced_order_that_nobody_follows_gives_way_to_readers_in_the_order_of_the_listing() -> None:
    async with serving(5000, size_bytes=100 * KIB) as (refs, engine, reader):
        announced = shuffled(refs[:1000])
        await engine.new_order().announce(announced)
        await read_all(engine, refs, announced[:20])
        await settled()
        before = expected_bytes(engine)
        assert before > CONFIG.memory_limit_bytes // 4 - 100 * KIB
        await read_all(engine, refs, list(range(1001, 4001, 11)))
        await read_all(engine, refs, list(range(4501, 4509)))
        await settled()
        assert set(reader.ranges(refs[4508].key)) == {(0, 100 * KIB)}


async def test_one_stalled_file_among_those_to_come_delays_no_other(autojump_clock: MockClock) -> None:
    """Semantics D6"""
    async with serving(400, delay_s=0.02) as (refs, engine, reader):
        reader.holds = lambda key, _start, _end: key == "file-00100"
        began_s = trio.current_time()
        await read_all(engine, refs, [inode for inode in in_order(refs) if inode != 101])
        assert trio.current_time() - began_s < 400 * 0.02 / 8


async def test_stalled_files_to_come_leave_connections_for_those_who_read(autojump_clock: MockClock) -> None:
    """Semantics D6"""
    refs = dataset(1000)
    shard = listed("shard", 2 * MIB)
    async with running(ReadaheadConfig(), Files([*refs, shard]), delay_s=0.02) as (engine, reader):
        reader.holds = lambda key, _start, _end: key.startswith("file")
        await engine.new_order().announce(in_order(refs))
        await trio.sleep(1)
        assert len(reader.gets) == 48
        began_s = trio.current_time()
        for offset in range(0, 2 * MIB, 64 * KIB):
            await engine.read(1001, shard, offset, 64 * KIB)
        # 32 requests of 64 KiB, one by one: 0.64 s.
        assert trio.current_time() - began_s < 0.3
        reader.let_go()


async def test_a_fetch_ahead_that_fails_fails_nobody_and_the_file_is_fetched_again() -> None:
    async with serving(10) as (refs, engine, reader):
        reader.failures = {("file-00005", 0): UnavailableError("503")}
        await read_all(engine, refs, in_order(refs)[:4])
        await settled()
        await read_all(engine, refs, in_order(refs)[4:])
        assert keys_twice(reader) == ["file-00005"]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["forget", "read", "release", "announce", "withdraw", "stall", "go"]), st.integers(1, 40)
    ),
    max_size=60,
)


@given(ACTIONS, st.sampled_from([384 * KIB, MIB]))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_bytes_are_right_and_the_books_are_too(
    actions: list[tuple[str, int]], limit_bytes: int
) -> None:
    trio.run(_carry_out, actions, limit_bytes)


async def _carry_out(actions: list[tuple[str, int]], limit_bytes: int) -> None:
    refs = [listed(f"file-{index:05}", 1 + index * 9 * KB) for index in range(40)]
    config = ReadaheadConfig(
        part_size_bytes=256 * KIB, first_part_bytes=64 * KIB, max_window_bytes=MIB, memory_limit_bytes=limit_bytes
    )
    async with running(config, Files(refs)) as (engine, reader), trio.open_nursery() as readers:
        order = engine.new_order()

        async def read(inode: int) -> None:
            ref = refs[inode - 1]
            assert await engine.read(inode, ref, 0, 64 * KIB) == content(ref)[: 64 * KIB]

        for action, inode in actions:
            match action:
                case "forget":
                    engine.forget(inode)
                case "read":
                    readers.start_soon(read, inode)
                case "release":
                    engine.release(inode)
                case "announce":
                    await order.announce(range(inode, 41))
                case "withdraw":
                    order.withdraw()
                case "stall":
                    reader.holds = _only(f"file-{inode:05}")
                case _:
                    reader.let_go()
            await settled()
            check_books(engine)
        reader.let_go()
