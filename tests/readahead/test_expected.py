"""The books of files that will be opened: two ranks, and what fits beside or in the place of which."""

import pytest

from fastfuse.readahead.expected import Expected
from fastfuse.readahead.parts import FileParts, Part
from tests.readahead.readers import KIB, listed

PART = 64 * KIB


def a_part(inode: int, *, is_guess: bool) -> Part:
    file = FileParts(inode, listed(f"file-{inode}", PART))
    file.is_expected, file.is_guess = True, is_guess
    part = Part(file, 0, PART, is_expected=True)
    file.add(part)
    return part


@pytest.mark.parametrize(("is_guess", "has_room"), [(False, False), (True, True)])
def test_a_known_file_takes_the_place_of_guesses_and_nothing_that_of_known_files(
    is_guess: bool, has_room: bool
) -> None:
    expected = Expected(16 * PART)
    for inode in range(4):
        expected.put(a_part(inode, is_guess=is_guess))
    assert not expected.has_room(PART, is_guess=True)
    assert expected.has_room(PART, is_guess=False) is has_room
    assert expected.has_place


def test_a_fetch_that_runs_leaves_its_room_to_nobody() -> None:
    expected = Expected(16 * PART)
    part = a_part(1, is_guess=True)
    expected.count_flight(part, 1)
    assert [expected.has_room(size, is_guess=False) for size in (3 * PART, 3 * PART + 1)] == [True, False]
    expected.count_flight(part, -1)
    assert expected.has_room(4 * PART, is_guess=False)


def test_guesses_go_first_and_a_file_of_another_rank_changes_its_shelf() -> None:
    expected = Expected(16 * PART)
    known, guess, adopted = (a_part(inode, is_guess=inode > 0) for inode in range(3))
    for part in (known, guess, adopted):
        expected.put(part)
    expected.rank(adopted.file, is_guess=False)
    expected.check_invariants()
    assert [expected.pop() for _ in range(3)] == [guess, known, adopted]
    assert (len(expected), expected.size_bytes) == (0, 0)


def test_what_is_taken_down_is_on_no_shelf() -> None:
    expected = Expected(16 * PART)
    part = a_part(1, is_guess=True)
    expected.put(part)
    assert expected.take(part.file) == [part]
    assert part.shelf is None
    assert expected.take(part.file) == []
