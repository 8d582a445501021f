"""Random or sequential, by the lengths of runs."""

import pytest

from fastfuse.readahead.runs import RunLengths
from tests.readahead.readers import KIB, MIB


def lengths(*runs: int) -> RunLengths:
    known = RunLengths(8 * MIB)
    for run_bytes in runs:
        known.jumped(run_bytes)
    return known


def test_without_a_jump_any_run_may_go_on() -> None:
    assert lengths().is_exceeded_by(1)
    assert lengths().usual_bytes == 0


@pytest.mark.parametrize("run_bytes", [4 * KIB, 512 * KIB, 8 * MIB])
def test_after_a_jump_a_run_is_sequential_when_it_is_longer_by_half(run_bytes: int) -> None:
    known = lengths(run_bytes)
    assert not known.is_exceeded_by(run_bytes * 3 // 2)
    assert known.is_exceeded_by(run_bytes * 3 // 2 + 1)


def test_a_long_run_before_the_jump_says_nothing() -> None:
    assert lengths(100 * MIB).is_exceeded_by(MIB)


def test_runs_that_ended_count_also_while_others_jump_in_the_middle_of_theirs() -> None:
    known = lengths(128 * KIB)
    known.ended(4 * MIB)
    known.jumped(128 * KIB)
    assert not known.is_exceeded_by(4 * MIB)
    for _ in range(20):
        known.ended(128 * KIB)
    assert known.is_exceeded_by(MIB)


def test_twelve_runs_of_about_one_length_foretell_the_next_in_full() -> None:
    runs = [508 * KIB, 504 * KIB, 512 * KIB, 500 * KIB] * 3
    assert lengths(*runs[:11]).usual_bytes == 0
    assert lengths(*runs).usual_bytes == 512 * KIB


def test_two_shorter_and_two_longer_runs_among_them_do_not_matter_but_three_do() -> None:
    alike = [512 * KIB] * 9
    assert lengths(4 * KIB, 4 * KIB, *alike[:8], 8 * MIB, 8 * MIB).usual_bytes == 512 * KIB
    assert lengths(4 * KIB, 4 * KIB, 4 * KIB, *alike).usual_bytes == 0
    assert lengths(*alike, 8 * MIB, 8 * MIB, 8 * MIB).usual_bytes == 0


def test_threads_whose_jumps_cut_each_others_runs_are_known_by_the_runs_that_ended() -> None:
    known = lengths(*[128 * KIB, 384 * KIB] * 6)
    assert known.usual_bytes == 0
    for _ in range(12):
        known.ended(512 * KIB)
    assert known.usual_bytes == 512 * KIB
