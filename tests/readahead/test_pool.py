"""The pool alone: what fits, what goes first, who waits, and that its books, and those of files, are always right."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastfuse.errors import UnavailableError
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.parts import FileParts, Part
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.shelves import SmallFiles, Threads
from tests.readahead.books import check_books, expected_bytes, parts_waiting
from tests.readahead.readers import KIB, MIB, listed

PART = 64 * KIB
LIMIT = 16 * PART
CONFIG = ReadaheadConfig(
    part_size_bytes=PART,
    first_part_bytes=PART,
    max_window_bytes=LIMIT,
    memory_limit_bytes=LIMIT,
    max_parts_in_flight=64,
)


class Pool(PartPool):
    """A pool with one open file, and what is done to that or another one, part by part."""

    def __init__(self, config: ReadaheadConfig = CONFIG) -> None:
        super().__init__(config)
        self.one = self.open(1, listed("a", 100 * MIB))

    def demanded(self, index: int, file: FileParts | None = None) -> Part:
        return self.demand(self.one if file is None else file, index * PART, (index + 1) * PART)

    def ahead(self, index: int, file: FileParts | None = None) -> Part | None:
        return self.try_ahead(self.one if file is None else file, index * PART, (index + 1) * PART)

    def held(self, index: int, file: FileParts | None = None) -> Part:
        part = self.demanded(index, file)
        self.land(part, bytes(PART))
        return part

    def expect(self, inode: int, *, is_guess: bool = False) -> Part | None:
        return self.try_expect(inode, listed(f"expected-{inode}", PART), PART, is_guess=is_guess)

    def expect_and_land(self, inodes: range, *, is_guess: bool = False) -> list[Part]:
        parts = [part for inode in inodes if (part := self.expect(inode, is_guess=is_guess)) is not None]
        for part in parts:
            self.land(part, bytes(PART))
        check_books(self)
        return parts


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_what_somebody_waits_for_evicts_files_that_will_be_opened_before_files_that_are_read(pool: Pool) -> None:
    read = [pool.held(index) for index in range(8)]
    pool.expect_and_land(range(10, 14))
    for index in range(20, 28):
        pool.held(index)
    assert all(part.data is not None for part in read)
    assert expected_bytes(pool) == 0


def test_files_that_will_be_opened_and_parts_ahead_share_three_quarters_of_the_memory(pool: Pool) -> None:
    pool.expect_and_land(range(10, 13))
    for index in range(9):
        pool.held(index)
    assert (pool.ahead(20), pool.expect(30)) == (None, None)


def test_readahead_of_all_files_leaves_the_last_quarter_of_the_connections_to_demands() -> None:
    pool = Pool(replace(CONFIG, max_parts_in_flight=4))
    other = pool.open(2, listed("b", 100 * MIB))
    granted = [pool.ahead(0), pool.ahead(1), pool.ahead(0, other), pool.ahead(1, other)]
    assert [part is not None for part in granted] == [True, True, True, False]
    assert granted[0] is not None
    pool.land(granted[0], bytes(PART))
    assert pool.ahead(1, other) is not None


def is_expected(pool: PartPool, inode: int) -> bool:
    file = pool.file(inode)
    return file is not None and file.is_expected


def drop_guesses(pool: PartPool) -> None:
    for inode in pool.inodes():
        if pool.is_guess(inode):
            pool.drop_expected(inode)


def test_guesses_take_what_expected_files_leave_and_give_it_back_the_newest_first(pool: Pool) -> None:
    assert pool.expect(10) is not None
    parts = pool.expect_and_land(range(11, 16), is_guess=True)
    assert len(parts) == 3
    assert pool.expect(20) is not None
    assert [part.data is not None for part in parts] == [True, True, False]
    assert pool.expect(21, is_guess=True) is None
    assert expected_bytes(pool) == LIMIT // 4
    check_books(pool)


def test_a_guess_that_is_on_its_way_gives_way_to_nobody(pool: Pool) -> None:
    flying = [pool.expect(inode, is_guess=True) for inode in range(10, 14)]
    assert None not in flying
    assert pool.expect(20) is None
    assert all(pool.is_guess(inode) for inode in range(10, 14))


def test_no_guess_is_given_up_for_a_file_that_fits_not_even_then(pool: Pool) -> None:
    parts = pool.expect_and_land(range(10, 12), is_guess=True)
    for index in range(12):
        pool.held(index)
    assert pool.expect(20) is None
    assert all(part.data is not None for part in parts)


def test_what_somebody_waits_for_evicts_guesses_before_expected_files(pool: Pool) -> None:
    (known,) = pool.expect_and_land(range(10, 11))
    parts = pool.expect_and_land(range(11, 14), is_guess=True)
    for index in range(15):
        pool.held(index)
    assert known.data is not None
    assert [part.data for part in parts] == [None] * 3


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_guess_that_an_order_comes_to_is_expected_from_then_on(has_landed: bool, pool: Pool) -> None:
    part = pool.expect(10, is_guess=True)
    assert part is not None
    if has_landed:
        pool.land(part, bytes(PART))
    assert [pool.adopt(inode) for inode in (10, 10, 11)] == [PART, 0, 0]
    if not has_landed:
        pool.land(part, bytes(PART))
    assert (pool.is_guess(10), is_expected(pool, 10)) == (False, True)
    pool.expect_and_land(range(11, 14), is_guess=True)
    assert [pool.expect(inode) is not None for inode in range(20, 24)] == [True, True, True, False]
    assert part.data is not None
    check_books(pool)


def test_files_of_orders_that_are_forgotten_are_found_if_opened_and_give_way_otherwise(pool: Pool) -> None:
    parts = [pool.expect(inode) for inode in range(10, 14)]
    for part in parts[:3]:
        assert part is not None
        pool.land(part, bytes(PART))
    pool.demote_expected()
    check_books(pool)
    assert parts[3] is not None
    pool.land(parts[3], bytes(PART))
    assert pool.open(10, listed("expected-10", PART)).at(0) is parts[0]
    assert [pool.expect(inode) is not None for inode in range(20, 25)] == [True] * 4 + [False]
    check_books(pool)


@pytest.mark.parametrize("is_guess", [False, True])
def test_so_many_files_that_will_be_opened_are_held_and_no_more_however_small(pool: Pool, is_guess: bool) -> None:
    for inode in range(10, 3000):
        part = pool.try_expect(inode, listed(f"tiny-{inode}", 1), 1, is_guess=is_guess)
        if part is not None:
            pool.land(part, bytes(1))
    assert expected_bytes(pool) == pool.expected.max_parts == LIMIT // (64 * KIB)


def test_of_the_largest_memory_no_more_than_16384_files_are_held_that_will_be_opened() -> None:
    assert PartPool(ReadaheadConfig(memory_limit_bytes=8 << 30)).expected.max_parts == 16384


def test_readahead_evicts_what_was_read_but_not_what_was_not(pool: Pool) -> None:
    unread = [pool.held(index) for index in range(10)]
    for index in (10, 11):
        part = pool.held(index)
        part.unread_bytes = 0
        pool.spend(part)
    assert pool.spent_bytes == 2 * PART
    for index in (12, 13):
        assert pool.ahead(index) is not None
    assert pool.ahead(14) is None
    assert all(pool.one.at(part.start) is part for part in unread)
    # Demands take the free quarter, then the spent parts, and only then what is unread, the oldest first.
    for index in (20, 21, 22, 23):
        pool.demanded(index)
    assert [part.data is None for part in unread] == [False] * 10
    assert pool.spent_bytes == 0
    pool.demanded(24)
    assert [part.data is None for part in unread] == [True] + [False] * 9
    assert pool.unread_dropped_bytes == PART


def test_parts_that_a_reader_left_make_room_for_others_but_not_for_its_own_readahead(pool: Pool) -> None:
    other = pool.open(2, listed("b", 100 * MIB))
    left = [pool.held(index) for index in range(12)]
    assert pool.ahead(0, other) is None
    for part in left:
        pool.rank(part, is_left=True)
    assert (pool.held_bytes, pool.one.left_bytes) == (12 * PART, 12 * PART)
    assert pool.ahead(20) is None
    assert all(pool.ahead(index, other) is not None for index in range(12))
    # There is room for four beside the twelve; then the oldest go.
    assert [part.data is None for part in left] == [True] * 8 + [False] * 4
    assert pool.unread_dropped_bytes == 8 * PART
    check_books(pool)


def test_a_part_that_was_left_is_as_good_as_any_when_a_reader_will_come_to_it(pool: Pool) -> None:
    other = pool.open(2, listed("b", 100 * MIB))
    parts = [pool.held(index) for index in range(12)]
    for is_left in (True, False):
        for part in parts:
            pool.rank(part, is_left=is_left)
    assert pool.one.left_bytes == 0
    assert pool.ahead(0, other) is None
    check_books(pool)


def test_what_else_came_with_a_read_at_random_goes_first(pool: Pool) -> None:
    part = pool.demanded(0)
    part.is_left = True
    pool.land(part, bytes(PART))
    assert (pool.spent_bytes, pool.one.left_bytes) == (PART, 0)


def test_a_part_that_was_left_on_its_way_lands_among_those_that_were_left(pool: Pool) -> None:
    part = pool.ahead(0)
    assert part is not None
    pool.rank(part, is_left=True)
    check_books(pool)
    pool.land(part, bytes(PART))
    assert pool.one.left_bytes == PART
    pool.spend(part)
    assert (pool.one.left_bytes, pool.spent_bytes) == (0, PART)
    check_books(pool)


def test_a_part_that_a_reader_came_to_again_is_not_the_oldest_any_more(pool: Pool) -> None:
    parts = [pool.held(index) for index in range(16)]
    pool.touch(parts[0])
    pool.demanded(16)
    assert parts[0].data is not None
    assert parts[1].data is None


def test_a_spent_part_larger_than_the_eighth_goes_at_once() -> None:
    pool = Pool(ReadaheadConfig(part_size_bytes=PART, first_part_bytes=PART, memory_limit_bytes=2 * PART))
    part = pool.held(0)
    pool.spend(part)
    assert part.data is None
    assert pool.held_bytes == 0


def test_spent_parts_of_tiny_files_are_few_however_little_they_take(pool: Pool) -> None:
    for inode in range(1, 1001):
        file = pool.open(inode, listed(str(inode), 10))
        part = pool.demand(file, 0, 10)
        pool.land(part, bytes(10))
        part.unread_bytes = inode % 2 * 10  # of every second one nothing was read
        pool.spend(part)
        pool.close(file)
        check_books(pool)
    found = [inode for inode in range(1, 1001) if pool.file(inode) is not None]
    assert found == list(range(1001 - LIMIT // (64 * KIB), 1001))


def test_a_small_part_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    pool = Pool(ReadaheadConfig(part_size_bytes=PART, first_part_bytes=PART, memory_limit_bytes=2 * PART))
    pool.demanded(0)
    pool.demand(pool.one, PART, PART + 4096)
    large = pool.demanded(2)
    assert pool.try_ahead(pool.one, 3 * PART, 3 * PART + 4096) is None
    small = pool.demand(pool.one, 4 * PART, 4 * PART + 4096)
    assert [part.room is not None for part in (large, small)] == [True, True]


def test_a_closed_file_leaves_its_next_reader_half_of_the_room_ahead(pool: Pool) -> None:
    for index in range(16):
        pool.held(index)
    pool.close(pool.one)
    check_books(pool)
    assert (pool.held_bytes - pool.spent_bytes, pool.spent_bytes) == (6 * PART, 2 * PART)
    pool.one = pool.open(1, listed("a", 100 * MIB))
    assert [pool.ahead(index) is not None for index in range(20, 27)] == [True] * 6 + [False]


def test_small_files_that_were_read_in_part_are_left_up_to_a_number(pool: Pool) -> None:
    page = 4 * KIB
    for inode in range(2, 66):
        file = pool.open(inode, listed(f"small-{inode}", page))
        pool.land(pool.demand(file, 0, page), bytes(page))
        pool.close(file)
        check_books(pool)
    assert pool.held_bytes == 2 * pool.expected.max_parts * page


def test_a_part_that_arrives_for_a_closed_file_is_spent_at_once(pool: Pool) -> None:
    part = pool.demanded(0)
    pool.close(pool.one)
    pool.land(part, bytes(PART))
    assert pool.spent_bytes == PART
    check_books(pool)


def test_another_version_under_the_same_inode_never_sees_the_parts_of_the_first(pool: Pool) -> None:
    part, flying = pool.held(0), pool.demanded(1)
    renewed = pool.open(1, listed("a", 100 * MIB, etag='"v2"'))
    assert renewed.at(0) is None
    assert renewed.at(PART) is None
    assert part.data is None
    pool.land(flying, bytes(PART))
    assert (pool.reserved_bytes, pool.held_bytes) == (0, 0)
    pool.close(pool.one)
    check_books(pool)


def test_the_parts_of_an_idle_file_make_room_for_the_readahead_of_others(pool: Pool) -> None:
    other = pool.open(2, listed("b", 100 * MIB))
    pool.enter(pool.one)
    for index in range(12):
        pool.held(index)
    assert pool.ahead(0, other) is None
    for index in range(100, 117):
        part = pool.held(index, other)
        part.unread_bytes = 0
        pool.spend(part)
    pool.enter(other)
    assert pool.ahead(0, other) is not None
    assert pool.share.window_bytes == 10.5 * PART


def test_a_read_that_a_release_has_overtaken_does_not_make_the_file_active_again(pool: Pool) -> None:
    pool.enter(pool.one)
    pool.enter(pool.open(2, listed("b", MIB)))
    pool.close(pool.one)
    pool.enter(pool.one)
    assert pool.share.window_bytes == 10.5 * PART


def test_each_stalled_file_leaves_connections_to_the_next() -> None:
    """Semantics D6."""
    pool = Pool(ReadaheadConfig(part_size_bytes=PART, first_part_bytes=PART, max_parts_in_flight=64))
    started = []
    for inode in range(5):
        file = pool.open(inode, listed(f"file-{inode}", 100 * PART))
        started.append(sum(pool.demanded(index, file).room is None for index in range(64)))
        check_books(pool)
    assert started == [48, 12, 3, 1, 0]
    assert parts_waiting(pool) == 4 * 64


def test_files_take_turns_at_a_single_connection() -> None:
    pool = Pool(ReadaheadConfig(part_size_bytes=PART, first_part_bytes=PART, max_parts_in_flight=1))
    files = [pool.open(inode, listed(f"file-{inode}", 100 * PART)) for inode in range(3)]
    parts = {(file.inode, index): pool.demanded(index, file) for file in files for index in range(3)}
    order = []
    while True:
        flying = [name for name, part in parts.items() if part.file.in_flight and part not in part.file.waiting]
        if not flying:
            break
        order.append(flying[0])
        pool.land(parts.pop(flying[0]), bytes(PART))
        check_books(pool)
    assert order == [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (1, 1), (2, 1), (1, 2), (2, 2)]


class AnyUseOfThePool(RuleBasedStateMachine):
    """Any order of events keeps the books right: the limit above all."""

    @initialize(limit_parts=st.integers(2, 20), connections=st.integers(1, 20))
    def start(self, limit_parts: int, connections: int) -> None:
        self.limit_bytes = limit_parts * PART
        self.pool = PartPool(
            ReadaheadConfig(
                part_size_bytes=PART,
                first_part_bytes=4 * KIB,
                memory_limit_bytes=self.limit_bytes,
                max_parts_in_flight=connections,
            )
        )
        self.versions = [1] * 8
        self.flying: list[Part] = []
        self.pinned: list[Part] = []
        self.held: list[Part] = []

    def file(self, inode: int) -> FileParts:
        return self.pool.open(inode, self.ref(inode))

    def ref(self, inode: int) -> ObjectRef:
        return listed("a", 100 * PART, etag=f'"{self.versions[inode]}"')

    @rule(inode=st.integers(0, 3), place=st.integers(0, 99), pages=st.integers(1, 16), waits=st.booleans())
    def demand(self, inode: int, place: int, pages: int, waits: bool) -> None:
        file = self.file(inode)
        start = place * PART
        known = file.at(start)
        if known is not None:
            self.pool.touch(known)
        else:
            part = self.pool.demand(file, start, start + pages * 4096)
            self.flying.append(part)
            if waits:
                self.pool.pin(part)
                self.pinned.append(part)

    @rule(inode=st.integers(0, 3), place=st.integers(0, 99))
    def read_ahead(self, inode: int, place: int) -> None:
        file = self.file(inode)
        if file.at(place * PART) is None:
            part = self.pool.try_ahead(file, place * PART, (place + 1) * PART)
            if part is not None:
                self.flying.append(part)

    @rule(inode=st.integers(0, 7), is_guess=st.booleans())
    def expect(self, inode: int, is_guess: bool) -> None:
        if self.pool.file(inode) is not None:
            assert self.pool.is_guess(inode) == bool(self.pool.adopt(inode))
        else:
            part = self.pool.try_expect(inode, self.ref(inode), PART, is_guess=is_guess)
            if part is not None:
                self.flying.append(part)

    @rule(inode=st.integers(0, 7), what=st.sampled_from(["demote", "drop one", "drop guesses"]))
    def forget_what_was_expected(self, inode: int, what: str) -> None:
        match what:
            case "demote":
                self.pool.demote_expected()
                assert self.pool.is_guess(inode) == is_expected(self.pool, inode)
            case "drop one":
                self.pool.drop_expected(inode)
                assert not is_expected(self.pool, inode)
            case _:
                drop_guesses(self.pool)
                assert not self.pool.is_guess(inode)

    @precondition(lambda self: any(part.room is None or part.room.is_set() for part in self.flying))
    @rule(data=st.data(), fails=st.booleans())
    def end_a_fetch(self, data: st.DataObject, fails: bool) -> None:
        running = [part for part in self.flying if part.room is None or part.room.is_set()]
        part = data.draw(st.sampled_from(running))
        self.flying.remove(part)
        if fails:
            self.pool.fail(part, UnavailableError("x"))
        else:
            self.pool.land(part, bytes(part.size_bytes))
            self.held.append(part)

    @precondition(lambda self: any(part.room is not None and not part.room.is_set() for part in self.flying))
    @rule(data=st.data())
    def give_up_waiting_for_room(self, data: st.DataObject) -> None:
        waiting = [part for part in self.flying if part.room is not None and not part.room.is_set()]
        part = data.draw(st.sampled_from(waiting))
        self.flying.remove(part)
        self.pool.fail(part, UnavailableError("cancelled"))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(self.pinned))
        assert part.data is not None or part.error is not None or part in self.flying
        self.pinned.remove(part)
        self.pool.unpin(part)

    @rule(data=st.data(), is_left=st.booleans())
    def jump(self, data: st.DataObject, is_left: bool) -> None:
        parts = [part for inode in range(4) for part in self.file(inode)]
        if parts:
            self.pool.rank(data.draw(st.sampled_from(parts)), is_left=is_left)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        parts = [part for inode in range(4) for part in self.file(inode)]
        if parts and self.pool.renew(part := data.draw(st.sampled_from(parts)), part.start):
            assert part.shelf is None or (part.unread_bytes and not part.is_left)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def read_out(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(self.held))
        part.unread_bytes = 0
        self.pool.spend(part)

    @rule(inode=st.integers(0, 3))
    def close(self, inode: int) -> None:
        self.pool.close(self.file(inode))

    @rule(inode=st.integers(0, 3))
    def replace(self, inode: int) -> None:
        self.file(inode)
        self.versions[inode] += 1
        self.file(inode)

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "pool"):
            return
        check_books(self.pool)
        pool = self.pool
        assert pool.reserved_bytes + pool.held_bytes <= self.limit_bytes
        running = [part for part in self.flying if part.room is None or part.room.is_set()]
        handed_over = {part for part in self.pinned if part.data is not None}
        assert pool.parts_in_flight == len(running)
        assert parts_waiting(self.pool) == len(self.flying) - len(running)
        assert pool.reserved_bytes == sum(part.size_bytes for part in {*running, *handed_over})
        if not self.flying and not self.pinned:
            assert pool.reserved_bytes == 0


TestAnyUseOfThePool = AnyUseOfThePool.TestCase
TestAnyUseOfThePool.settings = settings(deadline=None, max_examples=60, stateful_step_count=60)


SIZE_BYTES = 40


@given(
    steps=st.lists(st.tuples(st.integers(0, SIZE_BYTES - 1), st.integers(1, 12), st.booleans())),
    probes=st.lists(st.integers(0, SIZE_BYTES - 1)),
)
def test_the_index_answers_as_a_list_of_bytes_would(steps: list[tuple[int, int, bool]], probes: list[int]) -> None:
    file = FileParts(1, listed("a", SIZE_BYTES))
    owner: list[Part | None] = [None] * SIZE_BYTES
    for offset, length, removes in steps:
        if removes:
            part = owner[offset]
            if part is not None:
                file.remove(part)
                owner = [None if other is part else other for other in owner]
        elif not any(owner[offset : offset + length]):
            part = Part(file, offset, min(offset + length, SIZE_BYTES))
            part.data = memoryview(bytes(length)) if length % 2 else None
            file.add(part)
            owner[part.start : part.end] = [part] * part.size_bytes
    for probe in probes:
        assert file.at(probe) is owner[probe]
        assert file.missing_bytes(probe, SIZE_BYTES) == sum(part is None or part.data is None for part in owner[probe:])
        if owner[probe] is None:
            start, end = file.gap(probe)
            assert start <= probe < end
            assert not any(owner[start:end])
            assert start == 0 or owner[start - 1] is not None
            assert end == SIZE_BYTES or owner[end] is not None
    assert list(file) == list(dict.fromkeys(part for part in owner if part is not None))
    assert len(file) == len(set(filter(None, owner)))


def test_a_part_that_was_replaced_at_its_place_cannot_remove_its_successor() -> None:
    file = FileParts(1, listed("a", SIZE_BYTES))
    old, new = Part(file, 0, 10), Part(file, 0, 20)
    file.add(old)
    file.remove(old)
    file.add(new)
    file.remove(old)
    assert file.at(15) is new


def kept_by_threads(small_files: SmallFiles) -> dict[int, int]:
    kept: dict[int, int] = {}
    small_files.threads = Threads(
        fetch=lambda inode, size_bytes: kept.setdefault(inode, size_bytes) > 0,
        drop=lambda inode: kept.pop(inode, 0) > 0,
        held=lambda: (len(kept), sum(kept.values())),
    )
    return kept


def test_a_file_for_which_there_is_no_memory_is_left_to_others() -> None:
    def no_memory(_inode: int, _size_bytes: int) -> bool:
        raise MemoryError

    small_files = SmallFiles()
    small_files.threads = Threads(fetch=no_memory)
    assert not small_files.fetch(1, 10, is_guess=True)
    assert not small_files.guesses


def test_guesses_are_counted_apart_until_they_are_adopted_or_dropped_or_there_is_another_table() -> None:
    small_files = SmallFiles()
    kept = kept_by_threads(small_files)
    assert all(small_files.fetch(inode, 10, is_guess=inode > 2) for inode in range(1, 7))
    assert (small_files.held(), small_files.held(with_guesses=False), small_files.guesses) == (
        (6, 60),
        (2, 20),
        [3, 4, 5, 6],
    )
    assert [small_files.adopt(inode) for inode in (1, 3, 3)] == [0, 10, 0]
    assert small_files.held(with_guesses=False) == (3, 30)
    kept.pop(6)  # it could not be fetched
    assert small_files.drop_guess()
    assert [*kept] == [1, 2, 3, 4]
    assert (small_files.drop(4), small_files.drop(4), small_files.drop_guess()) == (True, False, False)
    assert small_files.fetch(7, 10, is_guess=True)
    kept.clear()
    small_files.refreshed()
    assert (small_files.held(), small_files.held(with_guesses=False), small_files.guesses) == ((0, 0), (0, 0), [])
