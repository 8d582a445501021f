from hypothesis import given, settings
from hypothesis import strategies as st

from fastfuse.filesystem.kernel.in_hand import Read, ReadsInHand

READS = st.builds(Read, st.integers(2, 4), st.integers(0, 3).map(lambda n: n * 10), st.just(10))


def begin(hand: ReadsInHand, *reads: Read) -> list[int]:
    return [hand.take(*read) for read in reads]


def next_worker(hand: ReadsInHand) -> None:
    """What the memory of a forked successor has: slots that are free."""
    hand._free = list(range(4096))


def test_two_crashes_with_the_same_read_in_hand_poison_it() -> None:
    hand, culprit, other = ReadsInHand(), Read(2, 0, 10), Read(3, 0, 10)
    begin(hand, culprit, other)
    assert hand.worker_died(was_killed=False) is None
    assert set(hand.suspects) == {culprit, other}
    next_worker(hand)
    begin(hand, culprit)
    assert hand.worker_died(was_killed=False) == culprit
    assert hand.is_poisoned(culprit)
    assert hand.is_poisoned(Read(2, 9, 4096))
    assert not hand.is_poisoned(Read(2, 10, 4096))
    assert not hand.is_poisoned(other)
    assert set(hand.suspects) == {other}


def test_of_several_suspects_in_hand_none_is_poisoned_before_one_is_alone() -> None:
    hand, slow, culprit = ReadsInHand(), Read(9, 0, 10), Read(3, 0, 10)
    begin(hand, culprit, slow)
    hand.worker_died(was_killed=False)
    next_worker(hand)
    begin(hand, culprit, slow)
    assert hand.worker_died(was_killed=False) is None
    assert hand.most_deaths == 2
    assert set(hand.suspects) == {culprit, slow}
    next_worker(hand)
    begin(hand, culprit)
    assert hand.worker_died(was_killed=False) == culprit
    assert set(hand.suspects) == {slow}


def test_a_suspect_that_was_answered_is_none_any_more() -> None:
    hand, read = ReadsInHand(), Read(2, 0, 10)
    begin(hand, read)
    hand.worker_died(was_killed=False)
    next_worker(hand)
    (slot,) = begin(hand, read)
    hand.put_back(slot)
    hand.prove(read)
    begin(hand, read)
    assert hand.worker_died(was_killed=False) is None


def test_kills_from_outside_are_held_against_no_read_and_suspects_stay_what_they_are() -> None:
    hand, suspect, read = ReadsInHand(), Read(2, 0, 10), Read(3, 0, 10)
    begin(hand, suspect)
    hand.worker_died(was_killed=False)
    for _ in range(10):
        next_worker(hand)
        begin(hand, suspect, read)
        assert hand.worker_died(was_killed=True) is None
        assert set(hand.suspects) == {suspect}
        assert hand.most_deaths == 1
    next_worker(hand)
    begin(hand, suspect, read)
    assert hand.worker_died(was_killed=False) == suspect


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(READS, st.booleans()), max_size=6, unique_by=lambda one: one[0]), max_size=6))
def test_no_read_is_poisoned_that_was_not_begun_unanswered_by_two_workers(lives: list[list[tuple[Read, bool]]]) -> None:
    hand = ReadsInHand()
    unanswered: list[set[Read]] = []
    for life in lives:
        for read, is_answered in life:
            if hand.is_poisoned(read):
                continue
            slot = hand.take(*read)
            if is_answered:
                hand.put_back(slot)
                hand.prove(read)
        unanswered.append({read for read, is_answered in life if not is_answered})
        poisoned = hand.worker_died(was_killed=False)
        if poisoned is not None:
            assert sum(poisoned in reads for reads in unanswered) >= 2
            assert poisoned in unanswered[-1]
        next_worker(hand)
