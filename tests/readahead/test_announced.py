"""Which files of an announced order are fetched: when it is right, roughly right, stale and wrong."""

import random
from collections.abc import Container, Iterable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fastfuse.readahead import orders
from fastfuse.readahead.orders import AnnouncedOrder

KB = 1000
MB = 1_000_000


class Carried:
    """Announces `inodes` as there is room, and carries out at once what the order commands."""

    def __init__(
        self, inodes: Iterable[int], *, first_bytes: int = 64 * MB, size_bytes: int = 39 * KB,
        room_files: int = 1 << 30, cached: Container[int] = (),
    ) -> None:  # fmt: skip
        self.order = AnnouncedOrder(first_bytes)
        self.cached = cached
        self.room_files = room_files
        self.size_bytes = size_bytes
        self.coming = iter(inodes)
        self.fetched: set[int] = set()
        self.dropped: list[int] = []
        self.early = self.opens = 0
        self.go_on()

    def go_on(self) -> None:
        while not self.order.is_full and (inode := next(self.coming, None)) is not None:
            self.order.announce([inode])
        while len(self.order._ahead) < self.room_files and (wanted := self.order.next()) is not None:
            if wanted in self.cached and self.order.trusts_page_cache:
                self.order.pass_over()
                continue
            self.order.advance(self.size_bytes)
            self.fetched.add(wanted)

    def open(self, inode: int) -> None:
        self.opens += 1
        self.early += inode in self.fetched
        self.dropped += self.order.begun(inode)
        self.go_on()

    def open_all(self, inodes: Iterable[int]) -> None:
        for inode in inodes:
            self.open(inode)


def shuffled(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).sample(range(1, count + 1), count)


def as_workers_open(inodes: list[int], *, files: int, workers: int) -> list[int]:
    """In batches, a worker each, with each worker at a pace of its own within a round."""
    opened: list[int] = []
    chance = random.Random(1)
    for start in range(0, len(inodes), files * workers):
        whole = inodes[start : start + files * workers]
        lanes = [iter(whole[at : at + files]) for at in range(0, len(whole), files)]
        while lanes:
            lane = chance.choice(lanes)
            inode = next(lane, None)
            if inode is None:
                lanes.remove(lane)
            else:
                opened.append(inode)
    return opened


@pytest.mark.parametrize(("files", "workers"), [(1, 16), (32, 4), (128, 4), (256, 16), (32, 128)])
def test_workers_that_follow_roughly_find_nearly_every_file_fetched(files: int, workers: int) -> None:
    inodes = shuffled(40_960)
    carried = Carried(inodes)
    carried.open_all(as_workers_open(inodes, files=files, workers=workers))
    assert carried.early > 0.97 * carried.opens
    assert carried.dropped == []


@pytest.mark.parametrize(("size_bytes", "count"), [(39 * KB, 256), (8 * MB, 8)])
def test_an_order_that_nobody_follows_costs_256_files_or_the_memory_that_is_allowed_once(
    size_bytes: int, count: int
) -> None:
    carried = Carried(range(1, 10_000), first_bytes=64 * MB, size_bytes=size_bytes)
    carried.open_all(range(20_000, 40_000))
    assert len(carried.fetched) == count


@pytest.mark.parametrize("right", [0.25, 0.5, 0.75])
def test_a_partly_wrong_order_costs_in_proportion_to_what_it_saves(right: float) -> None:
    chance = random.Random(2)
    announced = range(1, 40_001)
    opened = [inode for inode in announced if chance.random() < right]
    carried = Carried(announced)
    carried.open_all(opened)
    wasted = len(carried.fetched) - carried.early
    assert wasted <= 256 + 1024 + 2 * len(opened)
    if right >= 0.5:
        assert carried.early > 0.9 * carried.opens


@pytest.mark.parametrize("workers", [1, 16])
def test_files_that_nobody_opens_do_not_fill_the_memory(workers: int) -> None:
    chance = random.Random(2)
    announced = range(1, 9001)
    opened = as_workers_open([inode for inode in announced if chance.random() < 0.5], files=32, workers=workers)
    carried = Carried(announced, room_files=1200)
    carried.open_all(opened)
    assert carried.early > 0.8 * carried.opens


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("lost", [0.01, 0.1, 0.3, 0.9, 1])
def test_what_the_page_cache_has_is_fetched_only_once_most_of_it_is_lost(lost: float, workers: int) -> None:
    chance = random.Random(3)
    announced = range(1, 9001)
    opened = [inode for inode in as_workers_open([*announced], files=32, workers=workers) if chance.random() < lost]
    carried = Carried(announced, cached=announced)
    carried.open_all(opened)
    if lost < 0.5:
        assert not carried.fetched
    else:
        assert carried.early > 0.9 * carried.opens


def test_all_of_more_files_than_are_remembered_are_fetched_once_they_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "_MAX_QUEUED_FILES", 4096)
    carried = Carried((), cached=range(20_000))
    for start in range(0, 20_000, 64):
        assert not carried.order.is_full
        carried.coming = iter(range(start, start + 64))
        carried.go_on()
    carried.open_all(range(20_000))
    assert carried.early > 19_900


def test_an_endless_order_of_files_that_the_page_cache_has_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "_MAX_QUEUED_FILES", 4096)
    monkeypatch.setattr(orders, "_MAX_WAITING_BATCHES", 8)
    carried, announced = Carried((), cached=range(1 << 30)), 0
    while not carried.order.is_full and announced < 100_000:
        carried.coming = iter(range(announced, announced + 64))
        carried.go_on()
        announced += 64
    assert 4096 + 7 * 1024 <= announced < 100_000
    carried.coming = count(announced)
    carried.open_all(range(20_000))
    assert carried.early > 19_900


def test_an_order_of_several_epochs_is_where_its_readers_are_some_time_after_files_are_lost() -> None:
    """As an endless sampler announces it: ahead of its readers, also while the page cache has all."""
    inodes = [inode for epoch in range(4) for inode in shuffled(100_000, epoch)]
    carried = Carried((), cached=range(100_001))
    for at in range(0, 250_000, 16):
        carried.coming = iter(inodes[at : at + 16])
        carried.go_on()
    for at in range(250_000, 300_000):
        carried.coming = iter(inodes[at : at + 1])
        carried.open(inodes[at - 16_384])
        carried.fetched.discard(inodes[at - 16_384])
        if at == 290_000:
            carried.early = 0
    assert carried.early > 9900


def test_what_readers_have_passed_is_not_remembered_in_place_of_what_comes_next() -> None:
    carried = Carried(range(1, 200_001), cached=range(1, 200_001, 2))
    carried.open_all(range(2, 150_001, 2))
    carried.early = 0
    carried.open_all(range(150_001, 153_001))
    assert carried.early > 2900


def test_files_lost_after_more_than_are_remembered_were_kept_are_fetched_again() -> None:
    """As a sampler announces them: 16,384 ahead, and one more for each that is read."""
    carried = Carried(range(1, 150_001), cached=range(1, 200_001))
    carried.go_on()
    carried.go_on()
    for inode in range(134_001, 160_001):
        carried.coming = iter([inode + 16_000])
        carried.open(inode)
    assert carried.early > 26_000 - 16_384 - 512


def test_what_is_announced_again_is_fetched_in_its_new_order_once_it_is_lost() -> None:
    carried = Carried(shuffled(5000, 1), cached=range(1, 5001))
    carried.coming = iter(shuffled(5000, 2))
    carried.go_on()
    carried.open_all(shuffled(5000, 2))
    assert carried.early > 0.9 * carried.opens


def test_workers_that_lag_behind_have_lost_files_fetched_too() -> None:
    announced = range(1, 4097)
    carried = Carried(announced, cached=announced)
    carried.open_all(as_workers_open([*announced], files=256, workers=16))
    assert carried.early > 0.6 * carried.opens


def test_what_is_announced_as_files_are_read_is_remembered_however_long_that_goes_on() -> None:
    carried = Carried(range(1, 16_001), cached=range(1, 200_001))
    for inode in range(1, 150_001, 200):
        carried.coming = iter(range(inode + 16_000, inode + 16_200))
        carried.open(inode)
    assert not carried.fetched
    carried.open_all(range(150_001, 153_001))
    assert carried.early > 2900


def test_what_was_read_before_the_page_cache_began_to_lose_files_is_not_fetched() -> None:
    carried = Carried(range(1, 9001), cached=range(1, 9001))
    carried.open_all([5, *range(6000, 6500)])
    assert min(carried.fetched) > 6000
    assert carried.early > 480


def test_readers_who_begin_in_the_middle_are_caught_up_with() -> None:
    inodes = shuffled(20_000)
    carried = Carried(inodes)
    carried.open_all(inodes[3000:])
    assert carried.early > 0.99 * 17_000
    assert len(carried.fetched) <= 17_000 + 256 + 32


def test_one_file_opened_far_ahead_skips_nothing() -> None:
    inodes = shuffled(20_000)
    carried = Carried(inodes)
    carried.open(inodes[3900])
    carried.open_all(inodes[:3900])
    assert carried.early == 3900


def test_files_that_readers_leave_far_behind_are_dropped() -> None:
    carried = Carried(range(1, 10_000))
    carried.open_all(inode for inode in range(1, 5000) if inode % 10)
    assert carried.dropped == list(range(10, 10 * (len(carried.dropped) + 1), 10))
    assert len(carried.dropped) > 250


def test_an_order_is_spent_when_everything_is_fetched_or_passed_over() -> None:
    order = AnnouncedOrder(1 << 30)
    spent = [order.is_spent]
    order.announce([1, 2])
    assert order.next() == 1
    order.advance(10)
    spent.append(order.is_spent)
    order.advance(0)
    spent.append(order.is_spent)
    order.begun(1)
    assert [*spent, order.is_spent] == [True, False, True, True]


def test_a_file_that_is_skipped_costs_no_credit() -> None:
    order = AnnouncedOrder(MB)
    order.announce(range(1, 2000))
    for _ in range(1000):
        assert order.next() is not None
        order.advance(0)
    taken = 0
    while order.next() is not None:
        order.advance(1)
        taken += 1
    assert taken == 256


def test_an_order_gives_way_once_256_other_files_were_opened_and_none_of_its_own() -> None:
    carried = Carried([1, 2, 3])
    carried.open_all(range(1000, 1255))
    assert carried.order.give_way() == ()
    carried.open(2000)
    assert carried.order.give_way() == [1, 2, 3]
    followed = Carried([1, 2, 3])
    followed.open_all([*range(1000, 1200), 2, *range(2000, 2200)])
    assert followed.order.give_way() == ()


class Orders(RuleBasedStateMachine):
    """Against plain lists: nothing is fetched twice, nothing that was opened, and no more than was earned."""

    def __init__(self) -> None:
        super().__init__()
        self.order = AnnouncedOrder(first_bytes=100)
        self.pending: list[int] = []
        self.ahead: list[int] = []
        self.taken = self.matched = 0

    @rule(inodes=st.lists(st.integers(1, 400), max_size=60))
    def announce(self, inodes: list[int]) -> None:
        self.order.announce(inodes)
        for inode in inodes:
            if inode not in self.pending and inode not in self.ahead:
                self.pending.append(inode)

    @rule(inode=st.integers(1, 400))
    def open(self, inode: int) -> None:
        self.forget(self.order.begun(inode), inode)

    @rule(count=st.integers(1, 40))
    def open_next(self, count: int) -> None:
        for inode in (self.ahead + self.pending)[:count]:
            self.open(inode)

    @rule(count=st.integers(1, 100), size_bytes=st.integers(1, 30))
    def fetch(self, count: int, size_bytes: int) -> None:
        for _ in range(count):
            inode = self.order.next()
            if inode is None:
                break
            # Those before it were overtaken.
            assert inode in self.pending
            del self.pending[: self.pending.index(inode) + 1]
            self.ahead.append(inode)
            self.taken += 1
            self.order.advance(size_bytes)

    @rule()
    def withdraw(self) -> None:
        assert list(self.order.withdraw()) == self.ahead
        self.pending, self.ahead = [], []

    @invariant()
    def costs_no_more_than_it_earned(self) -> None:
        assert self.taken <= 256 + 2 * self.matched

    def forget(self, dropped: Iterable[int], inode: int) -> None:
        for left in dropped:
            self.ahead.remove(left)
        for files in (self.pending, self.ahead):
            if inode in files:
                files.remove(inode)
                self.matched += 1


Orders.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOrders = Orders.TestCase
