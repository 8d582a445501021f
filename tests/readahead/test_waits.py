"""The rule by which the rest of a file is fetched, against the best that could have been done in hindsight."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.pace import Rest, Waits

# Each read: how long it waits, and how much less the rest takes once it was read.
reads = st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 0.5)), min_size=1, max_size=60)


def with_the_rule(waits_s: list[float], prices_s: list[float]) -> float:
    rest, now_s = Rest(), 0.0
    for wait_s, price_s in zip(waits_s, prices_s, strict=True):
        rest.waits(now_s)
        now_s += wait_s
        rest.goes_on(now_s)
        if rest.is_due(price_s):
            return now_s + price_s
    return now_s


@given(first_price_s=st.floats(0.0, 20.0), reads=reads)
def test_waits_and_fetch_take_twice_the_best_at_most(first_price_s: float, reads: list[tuple[float, float]]) -> None:
    waits_s = [wait_s for wait_s, _ in reads]
    prices_s = [*accumulate((fall_s for _, fall_s in reads), lambda price_s, fall_s: max(0.0, price_s - fall_s),
                            initial=first_price_s)]  # fmt: skip
    waited_s = [0.0, *accumulate(waits_s)]
    # Waiting to the end, or fetching the rest before any of the reads.
    best_s = min(waited_s[-1], *(before + price for before, price in zip(waited_s, prices_s, strict=True)))
    assert with_the_rule(waits_s, prices_s[1:]) <= 2 * best_s + max(waits_s) + 1e-9


def test_reads_that_wait_at_the_same_time_lose_that_time_once() -> None:
    waits = Waits()
    waits.waits(1.0)
    waits.waits(2.0)
    assert waits
    waits.goes_on(3.0)
    assert (bool(waits), waits.lost_s) == (True, 2.0)
    waits.goes_on(5.0)
    assert (bool(waits), waits.lost_s) == (False, 4.0)


def test_after_the_rest_was_asked_for_the_count_begins_anew() -> None:
    rest = Rest()
    rest.waits(0.0)
    rest.goes_on(2.0)
    assert not rest.is_due(2.1)
    assert rest.is_due(2.0)
    assert not rest.is_due(0.1)


def test_a_rest_that_was_evicted_costs_twice_as_much_each_time() -> None:
    rest, now_s = Rest(), 0.0
    due_s: list[float] = []
    while len(due_s) < 4:
        rest.waits(now_s)
        now_s += 1.0
        rest.goes_on(now_s)
        if rest.is_due(2.0):
            due_s.append(now_s)
    assert due_s == [2.0, 6.0, 14.0, 30.0]


def test_readers_that_always_overlap_lose_time_too() -> None:
    rest = Rest()
    rest.waits(0.0)
    for now_s in (1.0, 2.0, 3.0):
        rest.waits(now_s - 0.5)
        rest.goes_on(now_s)
    assert rest
    assert rest.is_due(3.0)
