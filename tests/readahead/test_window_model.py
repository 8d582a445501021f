"""Properties of the window over any reads, against a model that keeps everything that was fetched."""

import random

from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.limits import Share
from fastfuse.readahead.pace import ServicePace
from fastfuse.readahead.window import Window
from tests.readahead.readers import KIB, MIB
from tests.readahead.window_model import EndlessPool

PAGE = 4 * KIB
CONFIG = ReadaheadConfig(
    part_size_bytes=64 * KIB, first_part_bytes=16 * KIB, max_window_bytes=256 * KIB, memory_limit_bytes=MIB
)
sizes = st.integers(1, 2 * MIB)
requests = st.sampled_from([1, 100, PAGE, 8 * KIB, 32 * KIB, 128 * KIB])


def reading(size_bytes: int) -> EndlessPool:
    return EndlessPool(Window(size_bytes, CONFIG, ServicePace()), size_bytes, CONFIG)


@given(size_bytes=sizes, steps=st.lists(st.tuples(st.integers(0, 2 * MIB), requests, st.booleans()), max_size=60))
@example(size_bytes=131_076, steps=[(1, 1, False), (3, 1, False), (0, 100, False), (1, 100, False)])
def test_any_read_is_covered_by_parts_within_the_file_that_never_overlap(
    size_bytes: int, steps: list[tuple[int, int, bool]]
) -> None:
    pool = reading(size_bytes)
    end = 0
    for place, length, continues in steps:
        offset = end if continues and end < size_bytes else place % size_bytes
        end = min(offset + length, size_bytes)
        pool.read(offset, end)
        assert all(pool.gap(byte) is None for byte in (offset, end - 1))


@given(
    size_bytes=st.integers(8 * MIB, 256 * MIB),
    shares=st.lists(
        st.tuples(st.integers(0, 512 * MIB), st.integers(1, 96), st.integers(1, 40)), min_size=1, max_size=20
    ),
)
def test_a_share_that_changes_in_the_middle_of_a_run_is_kept_and_no_byte_is_fetched_twice(
    size_bytes: int, shares: list[tuple[int, int, int]]
) -> None:
    config = ReadaheadConfig()
    pool = EndlessPool(Window(size_bytes, config, ServicePace()), size_bytes, config)
    offset = 0
    for window_bytes, parts_in_flight, reads in shares:
        pool.window.resize(Share(window_bytes, parts_in_flight))
        before = len(pool.ahead)
        for _ in range(reads):
            end = min(offset + MIB, size_bytes)
            if offset < end:
                pool.read(offset, end)
                offset = end
            assert all(until <= offset + window_bytes for _, until in pool.ahead[before:])
    pool.window.resize(Share(config.max_window_bytes, 96))
    pool.read_through(offset, size_bytes, MIB)
    assert sum(end - start for start, end in pool.fetched) == size_bytes


@given(
    size_bytes=st.integers(MIB, 2 * MIB),
    begin=st.integers(0, 127).map(lambda page: page * PAGE),
    depth=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_requests_out_of_order_within_the_kernels_depth_stay_one_reader_and_cost_nothing_twice(
    size_bytes: int, begin: int, depth: int, seed: int
) -> None:
    pool = reading(size_bytes)
    shuffled = random.Random(seed)
    offsets = list(range(begin, size_bytes, 8 * KIB))
    while offsets:
        offset = offsets.pop(shuffled.randrange(min(depth, len(offsets))))
        pool.read(offset, min(offset + 8 * KIB, size_bytes))
    # Requests that come in falling order may be taken for a reader that goes backwards.
    assert sum(end - max(start, begin) for start, end in pool.fetched if end > begin) == size_bytes - begin
    (cursor,) = pool.window.cursors
    assert (cursor.begin, cursor.position) == (begin, size_bytes)
    assert cursor.sequential


@given(places=st.lists(st.integers(1, 50), unique=True), length=st.sampled_from([1, PAGE, 3 * PAGE]))
def test_reads_that_never_continue_fetch_their_pages_and_no_more(places: list[int], length: int) -> None:
    pool = reading(20000 * PAGE)
    asked = set()
    for place in places:
        offset = place**2 * 7 * PAGE  # four squares are never at equal distances
        pool.read(offset, offset + length)
        asked |= set(range(offset // PAGE, (offset + length - 1) // PAGE + 1))
    assert pool.ahead == []
    assert sum(end - start for start, end in pool.fetched) == len(asked) * PAGE


@given(readers=st.integers(1, 8), seed=st.integers(0, 1000))
def test_readers_at_different_places_that_take_turns_at_random_all_become_sequential(readers: int, seed: int) -> None:
    size_bytes = readers * MIB
    pool = reading(size_bytes)
    positions = [reader * MIB for reader in range(readers)]
    turns = [reader for reader in range(readers) for _ in range(32)]
    random.Random(seed).shuffle(turns)
    for reader in turns:
        pool.read(positions[reader], positions[reader] + 16 * KIB)
        positions[reader] += 16 * KIB
    assert all(cursor.sequential for cursor in pool.window.cursors)
    # None of them waits for more than its first requests.
    assert len(pool.demanded) <= 8 * readers
