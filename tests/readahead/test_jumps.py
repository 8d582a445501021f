"""Readers that jump about in one file, through the kernel's page cache and past it."""

import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, zip_longest

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from tests.readahead.books import check_books
from tests.readahead.readers import KIB, MIB, listed, tensors
from tests.readahead.simulation import Reader, SimulatedService, simulated

PAGE = 4 * KIB
MEMORY_BYTES = ReadaheadConfig().memory_limit_bytes


class PageCache:
    """The pages of one file that the kernel has. A fault asks for the pages around it that are missing.

    Of what is refused it asks for single pages, when they are touched, unless it is told to drop them before.
    """

    def __init__(self, engine: ReadEngine, service: SimulatedService, ref: ObjectRef, around_bytes: int) -> None:
        self.engine = engine
        self.service = service
        self.ref = ref
        self.around_pages = around_bytes // PAGE
        self.pages: set[int] = set()
        self.refused: set[int] = set()
        self.requests = 0
        engine.fetches.drop_pages = self._drop

    async def touch(self, start: int, end: int) -> None:
        for page in range(start // PAGE, -(-end // PAGE)):
            if page not in self.pages:
                await self._fault(page)

    async def _fault(self, page: int) -> None:
        first = max(0, page - self.around_pages // 2)
        requests = [] if page in self.refused else [*self._missing(first, first + self.around_pages)]
        async with trio.open_nursery() as asking:
            for start, end in requests:
                if self.engine.put_off(1, start * PAGE, (end - start) * PAGE):
                    self.refused |= {*range(start, end)}
                    continue
                asking.start_soon(self._read, start, end)
                await wait_all_tasks_blocked()  # in this order
        if page not in self.pages:
            await self._read(page, page + 1)

    def _drop(self, inode: int, ranges: list[tuple[int, int]]) -> None:
        for start, end in ranges:
            self.refused.difference_update(range(start // PAGE, end // PAGE))

    async def _read(self, start: int, end: int) -> None:
        self.requests += 1
        await self.engine.read(1, self.ref, start * PAGE, (end - start) * PAGE)
        self.pages |= {*range(start, end)}

    def _missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Requests of 1 MiB at most."""
        last = min(last, -(-self.ref.size_bytes // PAGE))
        start = first
        while start < last:
            end = start
            while end < min(last, start + MIB // PAGE) and end not in self.pages and end not in self.refused:
                end += 1
            if start < end:
                yield start, end
            start = max(end, start + 1)


@asynccontextmanager
async def mapped(
    size_bytes: int, around_bytes: int = MIB, *, memory_bytes: int = MEMORY_BYTES, link_bytes_per_s: float = 1e12
) -> AsyncIterator[PageCache]:
    """Map a file of this size; the books are right in the end."""
    service = SimulatedService(link_bytes_per_s=link_bytes_per_s)
    async with simulated(service, ReadaheadConfig(memory_limit_bytes=memory_bytes)) as engine:
        yield PageCache(engine, service, listed("mapped", size_bytes), around_bytes)
        check_books(engine)


async def read_pieces(
    size_bytes: int, pieces: Iterable[tuple[int, int]], memory_bytes: int = MEMORY_BYTES
) -> SimulatedService:
    """Read `pieces` of a file one after the other, each from its offset on so many bytes; return the service."""
    ref, service = listed("pieces", size_bytes), SimulatedService()
    async with simulated(service, ReadaheadConfig(memory_limit_bytes=memory_bytes)) as engine:
        for offset, piece_bytes in pieces:
            await engine.read(1, ref, offset, piece_bytes)
        check_books(engine)
    return service


def rows(places: Iterable[int]) -> list[tuple[int, int]]:
    return [(place * PAGE, PAGE) for place in places]


def rows_at_many_spots() -> Iterator[tuple[int, int]]:
    places = random.Random(1)
    for spot in range(20):
        yield from rows(spot * (5 << 30) // PAGE + row for row in places.sample(range(2048), 14))


ROWS_IN_ORDER = sorted(random.Random(1).sample(range((1 << 30) // PAGE - 1), 1000))


@pytest.mark.parametrize(
    ("size_bytes", "memory_bytes", "pieces", "most_bytes"),
    [
        (1 << 30, 128 * MIB, rows(ROWS_IN_ORDER), 2 * 1000 * PAGE + 64 * MIB),
        (1 << 30, 128 * MIB, rows(ROWS_IN_ORDER[::-1]), 2 * 1000 * PAGE + 64 * MIB),
        # What is around them, and not the file.
        (800 * MIB, 1 << 30, rows(random.Random(1).sample(range(2560, 5120), 20)), 33 * MIB),
        # Not what is between the places.
        (100 << 30, 1 << 30, [*rows_at_many_spots()], 20 * 33 * MIB),
    ],
    ids=["more than memory, up", "more than memory, down", "a few near one another", "near one another at many places"],
)
async def test_rows_fetch_little_more_than_themselves(
    autojump_clock: MockClock, size_bytes: int, memory_bytes: int, pieces: list[tuple[int, int]], most_bytes: int
) -> None:
    assert (await read_pieces(size_bytes, pieces, memory_bytes)).fetched_bytes <= most_bytes


async def test_what_is_held_of_a_file_that_is_read_again_is_kept_until_its_reader_comes_there(
    autojump_clock: MockClock,
) -> None:
    once = [(offset, MIB) for offset in range(0, 66 * MIB, MIB)]
    # 64 MiB of what was read are held.
    assert (await read_pieces(66 * MIB, once * 2)).fetched_bytes <= (66 + 4) * MIB


async def test_jumps_back_to_the_middle_of_what_was_read_leave_none_of_it_unread(autojump_clock: MockClock) -> None:
    ref, unread_bytes = listed("again", 100 * MIB), set[int]()
    async with simulated(SimulatedService(), ReadaheadConfig()) as engine:
        for begin in (0, 21 * MIB, 27 * MIB, 35 * MIB):
            for offset in range(begin, 48 * MIB, MIB):
                await engine.read(1, ref, offset, MIB)
            await trio.sleep(1)  # all of the window has come
            unread_bytes.add(engine.memory()["unread"])
    assert len(unread_bytes) == 1


@pytest.mark.parametrize("around_bytes", [128 * KIB, 4 * MIB])
@pytest.mark.parametrize("memory_bytes", [144 * MIB, 912 * MIB])
async def test_a_checkpoint_read_in_the_order_of_its_keys_is_fetched_once(
    autojump_clock: MockClock, memory_bytes: int, around_bytes: int
) -> None:
    ranges = tensors(1, 256 * MIB, 8 * MIB)
    size_bytes = max(end for _, end in ranges)
    async with mapped(size_bytes, around_bytes, memory_bytes=memory_bytes) as cache:
        for start, end in ranges:
            await cache.touch(start, end)
            await trio.sleep((end - start) / 1e9)
    assert cache.service.fetched_bytes <= 1.05 * size_bytes
    assert cache.service.most_bytes <= memory_bytes


@pytest.mark.parametrize("seed", range(4))
async def test_what_the_kernel_keeps_is_fetched_once_in_any_order(autojump_clock: MockClock, seed: int) -> None:
    ranges = tensors(seed, 128 * MIB, 8 * MIB)
    size_bytes = max(end for _, end in ranges)
    random.Random(seed).shuffle(ranges)
    async with mapped(size_bytes, memory_bytes=64 * MIB) as cache:
        for start, end in ranges:
            await cache.touch(start, end)
    assert cache.service.fetched_bytes <= 1.05 * size_bytes


async def test_a_shuffled_checkpoint_that_does_not_fit_is_read_ahead_once_its_tensors_are_known(
    autojump_clock: MockClock,
) -> None:
    ranges = tensors(0, 436 * MIB, 8 * MIB)
    size_bytes = max(end for _, end in ranges)
    random.Random(0).shuffle(ranges)
    async with mapped(size_bytes, memory_bytes=256 * MIB) as cache:
        for start, end in ranges:
            await cache.touch(start, end)
        took_s = trio.current_time()
    assert took_s < 8  # 15.8 if only runs are read ahead that are longer than those before them
    assert cache.service.fetched_bytes <= 1.05 * size_bytes


async def test_what_the_kernel_has_dropped_is_read_ahead_again(autojump_clock: MockClock) -> None:
    """Twice through a file past the page cache: the second time as fast as the first."""
    ref = listed("file", 512 * MIB)
    times_s = []
    async with simulated(SimulatedService(), ReadaheadConfig()) as engine:
        for _ in range(2):
            began_s = trio.current_time()
            for offset in range(0, ref.size_bytes, MIB):
                await engine.read(1, ref, offset, MIB)
                await trio.sleep(MIB / 500e6)
            times_s.append(trio.current_time() - began_s)
    assert times_s[1] <= 1.05 * times_s[0]


async def test_single_pages_that_the_kernel_dropped_are_all_that_is_fetched_again(autojump_clock: MockClock) -> None:
    ranges = tensors(1, 128 * MIB, 8 * MIB)
    size_bytes = max(end for _, end in ranges)
    async with mapped(size_bytes, memory_bytes=64 * MIB) as cache:
        for index, (start, end) in enumerate(ranges):
            await cache.touch(start, end)
            if index == len(ranges) // 2:
                for page in random.Random(1).sample(sorted(cache.pages), 20):
                    await cache.engine.read(1, cache.ref, page * PAGE, PAGE)
    assert size_bytes <= cache.service.fetched_bytes <= size_bytes + 20 * PAGE


@pytest.mark.parametrize("around_bytes", [MIB, 2 * MIB])
async def test_few_small_tensors_of_a_map_fetch_little_more(autojump_clock: MockClock, around_bytes: int) -> None:
    """The kernel asks for 2 MiB around a fault once a reader has announced that it reads in sequence."""
    async with mapped(300 * MIB, around_bytes) as cache:
        await cache.touch(0, 4 * KIB)
        for place in random.Random(1).sample(range(1, 30), 29):
            await cache.touch(place * 10 * MIB + 40 * KIB, place * 10 * MIB + 44 * KIB)
    assert cache.service.fetched_bytes <= 4 * around_bytes + 6 * MIB


@pytest.mark.parametrize("around_bytes", [MIB, 2 * MIB])
async def test_tensors_that_were_looked_at_are_not_read_page_by_page(
    autojump_clock: MockClock, around_bytes: int
) -> None:
    """As transformers loads a model: it looks at the first page of each tensor, and then reads all of them."""
    async with mapped(300 * MIB, around_bytes) as cache:
        for tensor in range(30):
            await cache.touch(tensor * 10 * MIB + 40 * KIB, tensor * 10 * MIB + 44 * KIB)
        await cache.touch(0, 300 * MIB)
    # Single pages are those only that came with the page that was wanted.
    assert cache.requests <= 1000 + 30 * 128 * KIB // PAGE
    assert cache.service.fetched_bytes <= 1.02 * 300 * MIB


async def test_what_was_passed_over_on_the_way_to_the_end_is_there_when_it_is_wanted(autojump_clock: MockClock) -> None:
    """pyarrow tells the kernel of each batch that it will need, and the kernel fetches the first MiB of each."""
    batch_bytes = MIB + 960 * KIB
    firsts = [(batch * batch_bytes, MIB) for batch in range(40)]
    # The rest of the last batch first, so that the reader comes to the end.
    *others, last = [(offset + MIB, 960 * KIB) for offset, _ in firsts]
    random.Random(1).shuffle(others)
    service = await read_pieces(40 * batch_bytes, [*firsts, last, *others])
    assert service.fetched_bytes == 40 * batch_bytes


async def test_a_page_that_the_kernel_asks_for_again_does_not_make_it_forgetful(autojump_clock: MockClock) -> None:
    """More is fetched than the page: as much as the runs before it were long."""
    async with mapped(160 * MIB) as cache:
        places = random.Random(1).sample(range(16), 16)
        for place in places:
            await cache.engine.read(1, cache.ref, place * 10 * MIB, 132 * KIB)
            cache.pages |= {*range(place * 10 * MIB // PAGE, (place * 10 * MIB + 132 * KIB) // PAGE)}
        for place in places[:8]:
            await cache.touch(place * 10 * MIB, (place + 1) * 10 * MIB)
        await cache.engine.read(1, cache.ref, places[0] * 10 * MIB + 5 * MIB, 2 * PAGE)
        for place in places[8:]:
            await cache.touch(place * 10 * MIB, (place + 1) * 10 * MIB)
    assert cache.service.fetched_bytes <= 161 * MIB


@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_a_reader_left_takes_no_readahead_from_others(autojump_clock: MockClock, goes_on: bool) -> None:
    """Sixteen windows are left in one file; then another file is read at 1 GB/s."""
    ref = listed("jumps", 64 << 30)

    async def jump(engine: ReadEngine, first: int, last: int, bytes_per_s: float) -> None:
        for place in range(first, last):
            for offset in range(0, 32 * MIB, MIB):
                await engine.read(1, ref, (place << 30) + offset, MIB)
                await trio.sleep(MIB / bytes_per_s)

    reader = Reader(size_bytes=1 << 30, bytes_per_s=1e9)
    service = SimulatedService()
    async with simulated(service, ReadaheadConfig()) as engine, trio.open_nursery() as running_on:
        await jump(engine, 0, 16, 2e9)
        held_bytes = engine.pool.held_bytes
        if goes_on:
            running_on.start_soon(jump, engine, 16, 64, 2e8)
        await reader.run(engine, 1000)
        running_on.cancel_scope.cancel()
        check_books(engine)
    # They were kept for as long as nobody needed the memory.
    assert held_bytes > 512 * MIB
    assert reader.read_bytes_per_s > 0.85e9


@pytest.mark.parametrize("around_bytes", [8 * KIB, MIB])
async def test_random_rows_of_a_file_that_fits_are_soon_all_there(autojump_clock: MockClock, around_bytes: int) -> None:
    async with mapped(200 * MIB, around_bytes, link_bytes_per_s=1e9) as cache:
        for row in random.Random(1).sample(range(200 * MIB // (8 * KIB)), 2000):
            await cache.touch(row * 8 * KIB, (row + 1) * 8 * KIB)
        took_s = trio.current_time()
        # One that comes to the end is not done.
        await cache.engine.read(1, cache.ref, 200 * MIB - PAGE, PAGE)
        assert cache.engine.pool.held_bytes > 100 * MIB
    # A GET for each row takes 40 s, and the whole file 0.2 s.
    assert took_s < 2
    assert cache.service.fetched_bytes <= 1.02 * 200 * MIB
    assert cache.service.most_bytes <= MEMORY_BYTES


@pytest.mark.parametrize("is_down", [False, True])
async def test_of_the_rest_comes_first_what_the_reader_heads_for(autojump_clock: MockClock, is_down: bool) -> None:
    ref = listed("rows", 800 * MIB)
    service = SimulatedService()
    rows = sorted(random.Random(1).sample(range(ref.size_bytes // PAGE - 1), 200), reverse=is_down)
    async with simulated(service, ReadaheadConfig()) as engine:
        for row in rows:
            await engine.read(1, ref, row * PAGE, PAGE)
            if len(rest := [start for _, start, end in service.gets if end - start == 8 * MIB]) > 3:
                break
        check_books(engine)
    assert abs(rest[0] - row * PAGE) <= 16 * MIB
    assert [start - rest[0] for start in rest[:4]] == [number * (-8 if is_down else 8) * MIB for number in range(4)]


@pytest.mark.parametrize("is_down", [False, True])
async def test_rows_near_to_one_another_that_threads_take_in_order_come_at_the_speed_of_a_reader_in_sequence(
    autojump_clock: MockClock, is_down: bool
) -> None:
    """As lance takes rows, from the last to the first; a GET for each takes 5 s, and the whole file 0.4 s."""
    ref = listed("rows", 400 * MIB)
    service = SimulatedService(link_bytes_per_s=1e9)
    rows = iter(sorted(random.Random(1).sample(range(ref.size_bytes // PAGE - 1), 2000), reverse=is_down))

    async def take(engine: ReadEngine) -> None:
        for row in rows:
            await engine.read(1, ref, row * PAGE, PAGE)

    async with simulated(service, ReadaheadConfig()) as engine:
        async with trio.open_nursery() as threads:
            for _ in range(8):
                threads.start_soon(take, engine)
        took_s = trio.current_time()
        check_books(engine)
    assert took_s < 1
    assert service.fetched_bytes <= 1.02 * ref.size_bytes


async def test_pieces_that_were_passed_make_room_where_a_file_is_larger_than_memory(autojump_clock: MockClock) -> None:
    """Nobody reads all of a part, so what was passed would fill the memory, and nothing more would be read ahead."""
    ref, chances = listed("pieces", 1 << 30), random.Random(1)
    service = SimulatedService(link_bytes_per_s=1e9)
    reads = [(number * 4 * MIB + chances.randrange(16) * PAGE, MIB) for number in range(1, 256)]
    waited = 0
    async with simulated(service, ReadaheadConfig(memory_limit_bytes=128 * MIB)) as engine:
        for offset, size_bytes in reads:
            waited += engine.find(1, ref, offset, size_bytes) == "waited"
            await engine.read(1, ref, offset, size_bytes)
        check_books(engine)
    assert waited <= len(reads) // 5
    assert service.fetched_bytes <= 1.5 * len(reads) * MIB


# A reader leaves out less than a request each time, as where the kernel has some of the pages.
GAPS = [(offset, MIB) for offset in range(0, 1 << 30, 1600 * KIB)]


async def test_what_is_left_out_of_a_file_larger_than_memory_does_not_end_its_readahead(
    autojump_clock: MockClock,
) -> None:
    service = await read_pieces(1 << 30, GAPS, 128 * MIB)
    # One part at a time would take 14 s.
    assert trio.current_time() < 3
    assert service.fetched_bytes <= 1 << 30


async def test_a_second_reader_finds_what_the_first_has_passed(autojump_clock: MockClock) -> None:
    """It is not far behind, but further than the first one's requests."""
    both = [piece for offset, _ in GAPS for piece in ((offset, MIB), (offset - 32 * MIB, MIB)) if piece[0] >= 0]
    assert (await read_pieces(1 << 30, both, 128 * MIB)).fetched_bytes <= 1.05 * (1 << 30)


async def test_rows_near_to_one_another_do_not_end_the_fetch_of_the_rest(autojump_clock: MockClock) -> None:
    ref, places = listed("rows", 400 * MIB), random.Random(1)
    service = SimulatedService(link_bytes_per_s=1e8)
    async with simulated(service, ReadaheadConfig(max_parts_in_flight=16)) as engine:
        while service.fetched_bytes < 32 * MIB:  # the rest is on its way
            await engine.read(1, ref, places.randrange(ref.size_bytes // PAGE - 1) * PAGE, PAGE)
        for row in places.sample(range(2048), 14):
            await engine.read(1, ref, 100 * MIB + row * PAGE, PAGE)
        await trio.sleep(10)
    assert service.fetched_bytes >= ref.size_bytes


async def test_random_rows_of_a_file_that_does_not_fit_are_all_that_is_fetched(autojump_clock: MockClock) -> None:
    chances = random.Random(1)
    pages = [(chances.randrange((1 << 40) // PAGE - 1), chances.choice([1, 2])) for _ in range(500)]
    service = await read_pieces(
        1 << 40, rows(at for page, count in pages for at in range(page, page + count)), 256 * MIB
    )
    # Page by page, as maps are faulted that were read at random: the second page comes with the first.
    assert len(service.gets) <= 510
    assert trio.current_time() <= 510 * 0.021
    # Until runs are known to be alike, a second page brings more.
    assert service.fetched_bytes <= 500 * 2 * PAGE + 12 * 128 * KIB


@pytest.mark.parametrize("readers", [1, 8, 40])
async def test_records_of_any_size_read_page_by_page_take_few_gets(autojump_clock: MockClock, readers: int) -> None:
    """LMDB announces random reads of its map, so the kernel asks for each page of a record by itself."""
    chances = random.Random(1)
    records = [(chances.randrange((1 << 40) // PAGE - 150), chances.randrange(1, 150)) for _ in range(400)]
    pages = [
        [at for page, count in records[reader::readers] for at in range(page, page + count)]
        for reader in range(readers)
    ]
    service = await read_pieces(1 << 40, rows(at for at in chain(*zip_longest(*pages)) if at is not None), 256 * MIB)
    assert len(service.gets) <= 4 * len(records)
    assert service.fetched_bytes <= 2 * sum(count for _, count in records) * PAGE


async def test_the_rest_of_a_file_takes_no_readahead_from_others(autojump_clock: MockClock) -> None:
    rows = listed("rows", 800 * MIB)
    reader = Reader(size_bytes=1 << 30, bytes_per_s=1e9)
    async with simulated(SimulatedService(), ReadaheadConfig()) as engine:
        for row in random.Random(1).sample(range(rows.size_bytes // PAGE), 200):
            await engine.read(1, rows, row * PAGE, PAGE)
        held_bytes = engine.pool.held_bytes
        await reader.run(engine, 1000)
        check_books(engine)
    assert held_bytes > 700 * MIB
    assert reader.read_bytes_per_s > 0.85e9


async def test_a_few_pages_at_equal_distances_are_all_that_is_fetched(autojump_clock: MockClock) -> None:
    """The biases of thirty layers, read through a map."""
    async with mapped(300 * MIB) as cache:
        for layer in range(30):
            await cache.touch(layer * 10 * MIB, layer * 10 * MIB + PAGE)
        took_s = trio.current_time()
    assert cache.service.fetched_bytes <= 8 * MIB
    assert took_s < 0.4
