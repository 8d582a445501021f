from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.ranges import grown_part_bytes, known_part_end, opening_ends, part_ranges, parts_around

KIB = 1 << 10
MIB = 1 << 20


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
