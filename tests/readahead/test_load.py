"""How many GETs at once: against a link that is full, one that is not, and a service that becomes slow by itself."""

import pytest

from fastfuse.readahead.load import Load
from tests.readahead.readers import KIB, MIB

PART = 8 * MIB
FIRST_BYTE_S = 0.02
CONNECTION_BYTES_PER_S = 90e6


def run(
    load: Load, gets: int, link_bytes_per_s: float, wanted: int = 36, slower: float = 1.0, is_awaited: bool = True
) -> list[int]:
    """As many at once as are wanted and the limit allows; how many that were, for each GET."""
    at_once = []
    for _ in range(gets):
        in_flight = wanted if load.limit is None else min(wanted, load.limit)
        alone_s = FIRST_BYTE_S + PART / CONNECTION_BYTES_PER_S
        took_s = slower * max(alone_s, in_flight * PART / link_bytes_per_s)
        load.landed(PART, took_s, in_flight, took_s / alone_s, is_awaited=is_awaited)
        at_once.append(in_flight)
    return at_once


def test_nothing_is_limited_while_more_gets_bring_more() -> None:
    load = Load()
    assert set(run(load, 1000, 1e12)) == {36}


@pytest.mark.parametrize(("link_bytes_per_s", "useful"), [(1.5e9, 21), (1e9, 14), (0.5e9, 7), (0.2e9, 5)])
def test_on_a_full_link_no_more_stay_in_flight_than_twice_what_fills_it(link_bytes_per_s: float, useful: int) -> None:
    load = Load()
    at_once = run(load, 3000, link_bytes_per_s)[300:]
    assert sum(at_once) / len(at_once) < 2.3 * useful
    # Those that fill it less are tried and given up.
    assert sum(1 for in_flight in at_once if in_flight < 0.8 * useful) / len(at_once) < 0.1


def test_when_the_link_is_free_again_the_limit_goes() -> None:
    load = Load()
    run(load, 1000, 0.5e9)
    assert load.limit is not None
    run(load, 2000, 1e12)
    assert load.limit is None


def test_a_service_that_becomes_slower_for_another_reason_gets_no_fewer_gets_but_in_short_trials() -> None:
    load = Load()
    at_once = run(load, 3000, 1e12, slower=3.0)
    assert sum(1 for in_flight in at_once if in_flight < 36) / len(at_once) < 0.5
    assert max(at_once[-200:]) == 36


def test_nothing_is_tried_while_readers_are_kept_fed() -> None:
    assert set(run(Load(), 1000, 0.5e9, is_awaited=False)) == {36}


def test_few_gets_are_never_limited() -> None:
    load = Load()
    assert set(run(load, 500, 0.05e9, wanted=7)) == {7}


def test_smaller_gets_in_between_say_nothing() -> None:
    load = Load()
    for _ in range(300):
        run(load, 1, 1e9)
        load.landed(128 * KIB, 0.021, 36, 1.0)
    assert load.limit is not None


def test_when_parts_have_become_smaller_for_good_it_begins_anew() -> None:
    load = Load()
    run(load, 300, 0.5e9)
    assert load.limit is not None
    for _ in range(400):
        load.landed(2 * MIB, 0.04, 36, 1.0)
    assert load.limit is None
