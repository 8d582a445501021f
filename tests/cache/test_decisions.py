"""The pure parts of the tier, against naive models, and the policy's hit rates in simulation."""

import sqlite3
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.tier_policy import WORKLOADS, lru, tier
from fastfuse.cache.catalog import Extent, Index, create_in, gaps, pieces
from fastfuse.cache.policy import Returns, is_worth_it

UNIT = 4 << 20

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])))
wanted = st.tuples(st.integers(0, 40), st.integers(1, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(ranges, wanted)
def test_gaps_are_what_no_range_has(kept: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    missing = gaps(kept, *asked)
    found = [byte for start, end in missing for byte in range(start, end)]
    assert found == [byte for byte in range(*asked) if not any(start <= byte < end for start, end in kept)]
    assert all(one[1] < other[0] for one, other in pairwise(missing))


@given(ranges, wanted)
def test_pieces_give_each_kept_byte_once(kept: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    extents = [Extent(start, end, 1, 0, b"") for start, end in sorted(kept)]
    found = pieces(extents, *asked)
    assert all(extent.start <= start < end <= extent.end for extent, start, end in found)
    given_bytes = [byte for _, start, end in found for byte in range(start, end)]
    assert given_bytes == [byte for byte in range(*asked) if any(start <= byte < end for start, end in kept)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 9), st.integers(1, 9), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(0, 3)),
        st.tuples(st.just("hit"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("ask"), st.integers(1, 50)),
    ),
    max_size=30,
)


@given(steps)
def test_the_catalog_finds_what_was_committed_and_not_evicted(steps: list[tuple[str, int, int, int, int]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_in(connection)
    index = Index(connection)
    numbers = [index.add(10, 40) for _ in range(4)]
    assert index.add(10, 40) is None
    ids = [segment.id for segment in numbers if segment is not None]
    rows: dict[tuple[int, int], Extent] = {}
    now, asked, hits = 0, 0, [0] * 4
    hit_at, is_there = [0] * 4, [True] * 4
    for kind, first, *rest in steps:
        if kind == "add" and is_there[rest[2]]:
            extent = Extent(rest[0], rest[0] + rest[1], ids[rest[2]], 7, b"d")
            rows[first, rest[0]] = extent
            now += asked
            index.commit([(first, extent)], {ids[rest[2]]: 5}, {}, asked)
            asked = 0
        elif kind == "evict":
            index.evict(ids[first])
            is_there[first] = False
            rows = {place: extent for place, extent in rows.items() if extent.segment != ids[first]}
        elif kind == "hit" and is_there[first]:
            now, hit_at[first], hits[first] = now + asked, now + asked, hits[first] + rest[0]
            index.commit([], {}, {ids[first]: rest[0]}, asked)
            asked = 0
        elif kind == "ask":
            asked += first
    for object_id in range(3):
        expected = [extent for (of, _), extent in sorted(rows.items()) if of == object_id]
        assert index.find(object_id, 5, 12) == [one for one in expected if one.start < 12 and one.end > 5]
    returns = {ids[n]: max(now - hit_at[n], now * 10 // (hits[n] + 10)) for n in range(4) if is_there[n]}
    assert dict(index.victims(9)) == returns
    assert [size for _, size in index.victims(9)] == sorted(returns.values(), reverse=True)
    assert index.room_bytes() == 10 * len(returns)
    connection.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100))))
def test_returns_are_the_longer_of_the_last_two(asked: list[tuple[int, int]]) -> None:
    returns, now = Returns(64), 0
    seen: dict[int, list[int]] = {}
    for name, units in asked:
        now += units
        times = seen.setdefault(name, [])
        times.append(now)
        lengths = [max(1, after - before) for before, after in pairwise(times)]
        expected = max(lengths[-2:]) * UNIT if len(lengths) >= 2 else None
        assert returns.ask(name << 60 | name, now * UNIT, 0) == expected


def test_a_range_of_another_name_in_the_same_slot_is_unknown() -> None:
    returns = Returns(1)
    for name in (1 << 48, 2 << 48, 1 << 48, 2 << 48, 1 << 48):
        assert returns.ask(name, 0, 0) is None


def test_a_segment_that_nobody_reads_makes_room_and_one_that_is_read_only_for_what_is_read_twice_as_often() -> None:
    assert not is_worth_it(None, 250, 0, 100)
    assert is_worth_it(None, 251, 0, 100)
    assert not is_worth_it(None, 150, 100, 1000)
    assert is_worth_it(None, 151, 100, 1000)
    assert not is_worth_it(50, 100, 100, 1000)
    assert is_worth_it(49, 100, 100, 1000)


def test_hit_rates() -> None:
    """Epochs of twice the size bring at least 0.45, in any order; a skewed choice brings more than LRU."""
    rates = {}
    for name, make in WORKLOADS.items():
        requests, since = make()
        rates[name] = [sum(hits[since:]) / len(hits[since:]) for hits in (tier(requests), lru(requests))]
    assert rates["epochs of 0.9 sizes"][0] == 1
    assert rates["epochs of 2 sizes"][0] >= 0.45
    assert rates["epochs of 2 sizes, shuffled"][0] >= 0.45
    assert rates["epochs of 5 sizes"][0] >= 0.18
    assert rates["epochs of 5 sizes, shuffled"][0] >= 0.15
    assert rates["another set of 0.9 sizes after 10 epochs"][0] >= 0.8
    for name in ("Zipf 0.8 of 8 sizes", "Zipf 1.0 of 8 sizes"):
        assert rates[name][0] > rates[name][1]
