"""What follows on a run: a small jump, a late request, a stride; and random or sequential, by the lengths of runs."""

import pytest

from fastfuse.readahead.cursor import Cursor, Latest, RunLengths
from tests.readahead.readers import KIB, MIB

GIB = 1 << 30


@pytest.mark.parametrize(
    ("offset", "end", "belongs"),
    [
        (1100 * KIB, 1228 * KIB, True),  # over 76 KiB for 128
        (1151 * KIB, 1279 * KIB, True),
        (1152 * KIB, 1280 * KIB, False),  # over as much as it asks for: an early request, or another reader
        (1023 * KIB, 1151 * KIB, False),  # back
        (1 << 40, (1 << 40) + MIB, False),
    ],
)
def test_a_jump_over_less_than_a_request_belongs_to_the_run(offset: int, end: int, belongs: bool) -> None:
    assert Cursor(0, MIB).skips_to(offset, end) is belongs


def test_a_request_that_comes_late_for_what_was_jumped_over_changes_nothing_but_the_count() -> None:
    cursor = Cursor(0, MIB)
    cursor.skip(MIB + 100 * KIB, 2 * MIB)
    assert (cursor.position, cursor.reads) == (2 * MIB, 2)
    assert cursor.skips_to(MIB, MIB + 100 * KIB)
    cursor.skip(MIB, MIB + 100 * KIB)
    assert (cursor.position, cursor.reads) == (2 * MIB, 3)
    assert not cursor.skips_to(MIB, MIB + 101 * KIB)


def stride(pieces: int, step_bytes: int = 10 * MIB, piece_bytes: int = 64 * KIB) -> Cursor:
    return pieces_at([MIB + piece * step_bytes for piece in range(pieces)], piece_bytes)


def pieces_at(begins: list[int], piece_bytes: int = 64 * KIB, first: Cursor | None = None) -> Cursor:
    cursor = first
    for begin in begins:
        after = Cursor(begin, begin + piece_bytes)
        if cursor is not None:
            after.follow(cursor)
        cursor = after
    assert cursor is not None
    return cursor


def wanted(cursor: Cursor, pieces: int, most_pieces: int = 64) -> list[tuple[int, int]]:
    assert cursor.stride is not None
    found: list[tuple[int, int]] = []
    while (piece := cursor.stride.next_piece(most_pieces, 8 * MIB)) is not None and len(found) < pieces:
        cursor.stride.commanded(piece[1])
        found.append(piece)
    return found


def test_where_distances_vary_more_is_wanted_of_each_piece_and_no_piece_that_may_be_elsewhere() -> None:
    cursor = pieces_at([MIB, 11 * MIB + 8 * KIB, 21 * MIB + 4 * KIB, 31 * MIB])
    assert cursor.is_strided
    # They are as far behind the latest as they are apart on average, give or take 8 KiB, and 16 the second.
    assert wanted(cursor, 64) == [
        (41 * MIB - 8 * KIB, 41 * MIB + 72 * KIB),
        (51 * MIB - 16 * KIB, 51 * MIB + 80 * KIB),
    ]
    # Guesses that were right make the next ones surer.
    for _ in range(12):
        cursor = pieces_at([cursor.begin + 10 * MIB], first=cursor)
    assert wanted(cursor, 64)[-1] == (cursor.begin + 150 * MIB, cursor.begin + 150 * MIB + 64 * KIB)
    # There are no more than may be on their way.
    assert [start for start, _ in wanted(stride(20), 64, most_pieces=4)] == [
        (201 + 10 * piece) * MIB for piece in range(4)
    ]


def test_a_look_at_the_beginning_says_nothing_of_how_long_pieces_are() -> None:
    cursor = pieces_at([10 * MIB, 20 * MIB, 30 * MIB, 40 * MIB], first=Cursor(0, MIB))
    assert cursor.is_strided
    assert wanted(cursor, 1) == [(50 * MIB, 50 * MIB + 64 * KIB)]


def test_pieces_that_touch_or_overlap_are_no_stride() -> None:
    assert not stride(10, step_bytes=64 * KIB).is_strided
    assert not stride(10, step_bytes=-10 * MIB).is_strided


def test_runs_near_to_one_another_are_dense_and_so_are_others_after_a_jump() -> None:
    latest = Latest()
    for begin in (MIB, 5000 * MIB):
        for number in range(12):
            latest.append(Cursor(begin + number * MIB, begin + number * MIB + 8 * KIB))
            assert latest.dense_bytes == (11 * MIB if number == 11 else 0)


def lengths(*runs: int) -> RunLengths:
    known = RunLengths(8 * MIB)
    for run_bytes in runs:
        known.jumped(run_bytes)
    return known


def test_without_a_jump_any_run_may_go_on() -> None:
    assert lengths().are_exceeded_by(Cursor(0, 1))
    assert lengths().usual_bytes == 0


@pytest.mark.parametrize("run_bytes", [4 * KIB, 512 * KIB, 8 * MIB])
def test_after_a_jump_a_run_is_sequential_when_it_is_longer_by_half(run_bytes: int) -> None:
    known = lengths(run_bytes)
    assert not known.are_exceeded_by(Cursor(0, run_bytes * 3 // 2))
    assert known.are_exceeded_by(Cursor(0, run_bytes * 3 // 2 + 1))


def test_a_long_run_before_the_jump_says_nothing() -> None:
    assert lengths(100 * MIB).are_exceeded_by(Cursor(0, MIB))


def ended(*runs: int) -> RunLengths:
    known = lengths(128 * KIB)
    for run_bytes in runs:
        run = Cursor(MIB, MIB + run_bytes)
        run.is_shared = True
        for _ in range(2):  # noted once
            known.ended(run)
    return known


def test_a_run_of_one_of_several_readers_is_sequential_when_it_is_longer_by_half_than_all_that_ended() -> None:
    run = Cursor(GIB, GIB + 6 * MIB)
    run.read_at = 10
    assert run.is_interleaved
    assert ended(*[4 * MIB] * 11).are_exceeded_by(run)  # too few to tell
    assert not ended(4 * MIB, *[MIB] * 23).are_exceeded_by(run)
    assert ended(4 * MIB, *[MIB] * 24).are_exceeded_by(run)
    run.reads = 9
    assert ended(*[4 * MIB] * 24).are_exceeded_by(run)  # its reader is as good as alone


def test_a_run_of_one_of_several_readers_will_be_as_long_as_the_shortest_of_those_that_went_on() -> None:
    known = ended(*[MIB] * 9, 4 * MIB, 8 * MIB, 8 * MIB)
    assert [known.likely_bytes(mib * MIB) for mib in (0, 1, 3, 4)] == [MIB, 4 * MIB, 4 * MIB, 0]
    assert ended(*[MIB] * 11).likely_bytes(0) == 0


def test_of_runs_that_differ_one_is_sequential_if_those_that_came_so_far_were_twice_as_long_on_average() -> None:
    runs = [4 * KIB, 512 * KIB, 4 * MIB, 8 * MIB] * 3
    assert lengths(*runs).are_exceeded_by(Cursor(0, 3 * MIB - 1))
    assert not lengths(*runs).are_exceeded_by(Cursor(0, 3 * MIB))
    assert not lengths(*runs[:11], 8 * MIB).are_exceeded_by(Cursor(0, 8 * MIB))
    assert not lengths(*runs[1:]).are_exceeded_by(Cursor(0, 3 * MIB - 1))  # too few to tell
    assert not lengths(*[4 * KIB] * 2, *[4 * MIB] * 9, 8 * MIB).are_exceeded_by(Cursor(0, MIB))  # they do not differ


def test_twelve_runs_of_about_one_length_or_a_few_pages_foretell_the_longest() -> None:
    runs = [508 * KIB, 504 * KIB, 512 * KIB, 500 * KIB] * 3
    assert lengths(*runs[:11]).usual_bytes == 0
    assert lengths(*runs).usual_bytes == 512 * KIB
    assert lengths(*[4 * KIB, 8 * KIB] * 6).usual_bytes == 8 * KIB
    assert lengths(*[4 * KIB, 36 * KIB] * 6).usual_bytes == 0


def test_two_shorter_and_two_longer_runs_among_them_do_not_matter_but_three_do() -> None:
    alike = [512 * KIB] * 9
    assert lengths(4 * KIB, 4 * KIB, *alike[:8], 8 * MIB, 8 * MIB).usual_bytes == 512 * KIB
    assert lengths(4 * KIB, 4 * KIB, 4 * KIB, *alike).usual_bytes == 0
    assert lengths(*alike, 8 * MIB, 8 * MIB, 8 * MIB).usual_bytes == 0
