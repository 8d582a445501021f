"""The limits: which sizes are possible, what is kept for demands, what each file may have ahead, and its parts."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.limits import FairShare, Share, ahead_share
from fastfuse.readahead.ranges import grown_part_bytes, known_part_end, opening_ends, part_ranges, parts_around
from tests.readahead.readers import KIB, MIB


@pytest.mark.parametrize(("target_mib", "first_mib"), [(128, 16), (1024, 128), (4096, 256)])
def test_whoever_is_expected_to_read_on_begins_with_an_eighth_of_the_target_or_what_one_reader_can_take(
    target_mib: int, first_mib: int
) -> None:
    config = ReadaheadConfig.within(
        target_mib << 20, part_size_bytes=8 << 20, max_parts_in_flight=64, expects_whole_files=True
    )
    assert config.first_window_bytes == first_mib << 20


def shared_by(readers: Iterable[int], whole: Share) -> FairShare[int]:
    of_all = FairShare[int](whole, idle_after_bytes=500)
    for inode in readers:
        of_all.touch(inode, 0)
    return of_all


@pytest.mark.parametrize(
    ("whole", "readers", "share"),
    [
        (Share(1200, 12), 0, Share(1200, 12)),
        # An eighth is free for the next.
        (Share(1200, 12), 1, Share(1050, 11)),
        (Share(1200, 12), 2, Share(525, 6)),
        # Among eight readers and more a share like theirs is free.
        (Share(1200, 24), 11, Share(100, 2)),
        # Even among many each may have one part on its way.
        (Share(1000, 12), 20, Share(47, 1)),
    ],
)
def test_each_reader_has_the_same_share(whole: Share, readers: int, share: Share) -> None:
    of_all = shared_by(range(readers), whole)
    assert of_all.share == share


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 300)), max_size=40))
def test_a_file_has_a_share_until_it_is_closed_or_others_have_fetched_more_than_the_bound_since_it_was_read(
    steps: list[tuple[bool, int, int]],
) -> None:
    whole, reads, now = Share(1000, 12), dict[int, int](), 0
    of_all = shared_by((), whole)
    for is_read, file, fetched_bytes in steps:
        now += fetched_bytes
        if is_read:
            reads[file] = now
            idle = {other for other, read_at in reads.items() if now - read_at > 500}
            assert set(of_all.touch(file, now)) == idle
        else:
            of_all.forget(file)
            idle = {file}
        reads = {other: read_at for other, read_at in reads.items() if other not in idle}
        assert of_all.share == shared_by(reads, whole).share


@pytest.mark.parametrize(("connections", "parts"), [(1, 1), (4, 3), (64, 48), (80, 60), (128, 60), (256, 96)])
def test_parts_ahead_of_readers_take_three_quarters_of_80_connections_and_of_half_of_more(
    connections: int, parts: int
) -> None:
    assert ahead_share(ReadaheadConfig(max_parts_in_flight=connections)).parts_in_flight == parts


@pytest.mark.parametrize(("limit_mib", "ahead_mib"), [(64, 48), (128, 96), (448, 416), (1024, 992)])
def test_a_quarter_of_the_memory_is_kept_for_demands_and_32_mib_at_most(limit_mib: int, ahead_mib: int) -> None:
    assert ahead_share(ReadaheadConfig(memory_limit_bytes=limit_mib * MIB)).window_bytes == ahead_mib * MIB


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.integers(0, 1000), st.integers(12, 20), st.integers(20, 26))
def test_a_grown_part_spreads_twice_the_run_over_the_gets_or_is_a_twelfth_of_what_is_ahead(
    run_bytes: int, ahead_bytes: int, parts_in_flight: int, first: int, most: int
) -> None:
    part_bytes = grown_part_bytes(run_bytes, ahead_bytes, parts_in_flight, 1 << first, 1 << most)
    assert part_bytes & (part_bytes - 1) == 0
    assert 1 << first <= part_bytes <= 1 << most
    later_bytes = (1 << first) + ahead_bytes // 12
    if part_bytes > later_bytes:
        assert part_bytes <= run_bytes / 2
        assert part_bytes * parts_in_flight <= 2 * run_bytes
    if part_bytes < 1 << most:
        assert part_bytes * max(parts_in_flight, 4) > run_bytes
        assert 2 * part_bytes > later_bytes


@given(st.integers(0, 100 * MIB), st.integers(1, 16), st.integers(0, 1 << 40))
def test_parts_cover_an_object_without_gaps_and_are_no_larger_than_they_may_be(
    size_bytes: int, part_mib: int, before_bytes: int
) -> None:
    parts = list(part_ranges(size_bytes, part_mib * MIB, before_bytes))
    assert [start for start, _ in parts] == [0, *(end for _, end in parts)][: len(parts)]
    assert not parts or parts[-1][1] == size_bytes
    assert all(0 < end - start <= part_mib * MIB for start, end in parts)


@given(st.integers(1, 500 * MIB), st.integers(1, 16), st.integers(0, 400 * MIB))
def test_parts_grow_by_a_twelfth_of_what_lies_before_them_and_end_at_whole_mib(
    size_bytes: int, part_mib: int, before_bytes: int
) -> None:
    *parts, _ = part_ranges(size_bytes, part_mib * MIB, before_bytes)
    for start, end in parts:
        if before_bytes + start < MIB:
            assert end - start == 256 * KIB
        else:
            assert end % MIB == 0
            grown_bytes = min(part_mib * MIB, MIB + (before_bytes + start) / 12)
            # Less by what it was rounded down, itself and its end.
            assert grown_bytes - 2 * MIB < end - start <= grown_bytes


def test_a_file_read_alone_is_opened_in_parts_that_double() -> None:
    ends = opening_ends(MIB, 8 * MIB, 64)
    sizes = [end - start for start, end in pairwise([0, *ends])]
    assert sizes[:5] == [256 * KIB] * 4 + [MIB]
    assert sizes == sorted(sizes)
    assert set(sizes[4:-1]) == {MIB, 2 * MIB, 4 * MIB}
    # The window is twice the run: 84 MiB are ahead where a twelfth of them makes parts of 8 MiB.
    assert (sizes[-1], ends[-2]) == (8 * MIB, 128 * MIB)


def test_a_part_that_begins_anywhere_is_no_fragment() -> None:
    for start in (2 * MIB - 4 * KIB, 2 * MIB + 4 * KIB, 3 * MIB - 1):
        assert 256 * KIB <= known_part_end(start, 40 * MIB, 8 * MIB, 0) - start <= MIB


def test_parts_that_are_no_whole_mib_keep_their_size() -> None:
    sizes = [end - start for start, end in part_ranges(36 * MIB, 3 * MIB // 2, 1 << 30)]
    assert sizes == [3 * MIB // 2] * 24


def test_a_short_rest_is_no_get_of_its_own_where_it_fits_into_the_last_part() -> None:
    assert list(part_ranges(300 * KIB, 8 * MIB, 0)) == [(0, 300 * KIB)]
    assert list(part_ranges(9 * MIB, 8 * MIB, 1 << 30)) == [(0, 8 * MIB), (8 * MIB, 9 * MIB)]


@given(st.integers(1, 100), st.integers(1, 10), st.data())
def test_the_parts_around_a_place_are_all_parts_those_that_the_reader_heads_for_first(
    size_bytes: int, part_bytes: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, size_bytes - 1))
    up, down = (parts_around(offset, size_bytes, part_bytes, is_down=is_down) for is_down in (False, True))
    for parts in (up, down):
        assert parts[0][0] <= offset < parts[0][1]
        assert sorted(parts) == [
            (start, min(start + part_bytes, size_bytes)) for start in range(0, size_bytes, part_bytes)
        ]
    ahead, below = (size_bytes - 1) // part_bytes - offset // part_bytes, offset // part_bytes
    assert all(end == start for (_, end), (start, _) in pairwise(up[: ahead + 1]))
    assert all(end == start for (start, _), (_, end) in pairwise(down[: below + 1]))
    most = data.draw(st.integers(1, 20))
    some_up, some_down = (
        parts_around(offset, size_bytes, part_bytes, is_down=is_down, most_ahead=most) for is_down in (False, True)
    )
    assert (some_up, some_down) == (up[: ahead + 1][:most], down[: below + 1][:most])


def test_a_few_parts_ahead_are_told_at_once_in_a_file_of_any_size() -> None:
    few = parts_around(1 << 60, 1 << 62, 8 * MIB, is_down=True, most_ahead=2)
    assert few == [(1 << 60, (1 << 60) + 8 * MIB), ((1 << 60) - 8 * MIB, 1 << 60)]
