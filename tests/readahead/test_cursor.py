"""What follows on a run: a small jump, a late request, the next piece of a stride."""

import pytest

from fastfuse.readahead.cursor import Cursor
from tests.readahead.readers import KIB, MIB


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
    cursor = Cursor(MIB, MIB + piece_bytes)
    for piece in range(1, pieces):
        after = Cursor(MIB + piece * step_bytes, MIB + piece * step_bytes + piece_bytes)
        after.follow(cursor)
        cursor = after
    return cursor


def test_four_equal_pieces_at_equal_distances_are_a_stride() -> None:
    assert not stride(3).is_strided
    cursor = stride(4)
    assert cursor.is_strided
    assert cursor.steps_to(41 * MIB)
    assert cursor.next_piece(64) == (41 * MIB, 41 * MIB + 64 * KIB)


def test_a_piece_of_another_length_or_distance_begins_anew() -> None:
    cursor = stride(4)
    for begin, length in ((41 * MIB + 4 * KIB, 64 * KIB), (51 * MIB, 4 * KIB), (61 * MIB, 64 * KIB)):
        after = Cursor(begin, begin + length)
        after.follow(cursor)
        cursor = after
        assert not cursor.is_strided


def test_as_many_pieces_are_foreseen_as_there_were_steps_and_no_more_than_allowed() -> None:
    cursor = stride(6)
    seen = []
    while (piece := cursor.next_piece(64)) is not None:
        seen.append(piece)
        cursor.ahead_until = piece[1]
    assert seen == [((61 + 10 * index) * MIB, (61 + 10 * index) * MIB + 64 * KIB) for index in range(5)]
    assert stride(6).next_piece(0) is None


def test_the_next_run_of_a_stride_knows_what_was_commanded_for_it() -> None:
    cursor = stride(5)
    cursor.ahead_until = 71 * MIB + 64 * KIB
    after = Cursor(51 * MIB, 51 * MIB + 64 * KIB)
    after.follow(cursor)
    assert after.next_piece(64) == (81 * MIB, 81 * MIB + 64 * KIB)


def test_the_rest_of_a_piece_comes_before_the_next_piece() -> None:
    cursor = stride(4)
    cursor.ahead_until = 41 * MIB + 16 * KIB
    assert cursor.next_piece(64) == (41 * MIB + 16 * KIB, 41 * MIB + 64 * KIB)


def test_pieces_that_touch_or_overlap_are_no_stride() -> None:
    assert not stride(10, step_bytes=64 * KIB).is_strided
    assert not stride(10, step_bytes=-10 * MIB).is_strided
