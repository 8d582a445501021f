import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from fastfuse.filesystem.kernel.fuse import replies
from fastfuse.filesystem.kernel.in_hand import Read, ReadsInHand

# Where `replies` keeps the READs, after the message and two numbers; and how, but for what nobody looks at.
_READS = (64 << 10) + 16
_KEPT = struct.Struct("=8xQQ24xQI20xII24x")  # number, inode, offset, size, crashes, whether it is begun

READS = st.builds(Read, st.integers(2, 4), st.integers(0, 3).map(lambda n: n * 10), st.just(10))


class Workers:
    """One worker after the other, with what each finds of the last one."""

    def __init__(self) -> None:
        self.hand = ReadsInHand()
        self.requests = bytearray(replies.REQUESTS_BYTES)

    def begin(self, *reads: Read, is_answered: bool = False) -> None:
        for read in reads:
            at = _READS + _KEPT.size * (10 * read.inode + read.offset // 10)
            *_, crashes, _ = _KEPT.unpack_from(self.requests, at)
            _KEPT.pack_into(self.requests, at, at * (not is_answered), *read, crashes * (not is_answered), 1)

    def die(self, *, was_killed: bool = False) -> Read | None:
        return self.hand.worker_died(self.requests, was_killed=was_killed)

    @property
    def suspects(self) -> set[Read]:
        return set(self.hand.suspects.values())


def test_two_crashes_with_the_same_read_in_hand_poison_it() -> None:
    workers, culprit, other = Workers(), Read(2, 0, 10), Read(3, 0, 10)
    workers.begin(culprit, other)
    assert workers.die() is None
    assert workers.suspects == {culprit, other}
    workers.begin(culprit)
    assert workers.die() == culprit
    assert workers.hand.is_poisoned(culprit)
    assert workers.hand.is_poisoned(Read(2, 9, 4096))
    assert not workers.hand.is_poisoned(Read(2, 10, 4096))
    assert not workers.hand.is_poisoned(other)
    assert workers.suspects == {other}
    assert workers.hand.most_deaths == 1


def test_of_several_suspects_in_hand_none_is_poisoned_before_one_is_alone() -> None:
    workers, slow, culprit = Workers(), Read(9, 0, 10), Read(3, 0, 10)
    workers.begin(culprit, slow)
    workers.die()
    workers.begin(culprit, slow)
    assert workers.die() is None
    assert workers.hand.most_deaths == 2
    assert workers.suspects == {culprit, slow}
    workers.begin(culprit)
    assert workers.die() == culprit
    assert workers.suspects == {slow}


def test_a_suspect_that_was_answered_is_none_any_more() -> None:
    workers, read = Workers(), Read(2, 0, 10)
    workers.begin(read)
    workers.die()
    workers.begin(read, is_answered=True)
    workers.begin(read)
    assert workers.die() is None


def test_a_worker_that_begins_nothing_is_held_against_no_read() -> None:
    workers, read = Workers(), Read(2, 0, 10)
    workers.begin(read)
    for _ in range(3):
        assert workers.die() is None
        assert workers.suspects == {read}
        assert workers.hand.most_deaths == 1


def test_kills_from_outside_are_held_against_no_read_and_suspects_stay_what_they_are() -> None:
    workers, suspect, read = Workers(), Read(2, 0, 10), Read(3, 0, 10)
    workers.begin(suspect)
    workers.die()
    for _ in range(10):
        workers.begin(suspect, read)
        assert workers.die(was_killed=True) is None
        assert workers.suspects == {suspect}
        assert workers.hand.most_deaths == 1
    workers.begin(suspect, read)
    assert workers.die() == suspect


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(READS, st.booleans()), max_size=6, unique_by=lambda one: one[0]), max_size=6))
def test_no_read_is_poisoned_that_was_not_begun_unanswered_by_two_workers(lives: list[list[tuple[Read, bool]]]) -> None:
    workers = Workers()
    unanswered: list[set[Read]] = []
    for life in lives:
        for read, is_answered in life:
            if workers.hand.is_poisoned(read):
                continue
            workers.begin(read, is_answered=is_answered)
        unanswered.append({read for read, is_answered in life if not is_answered})
        poisoned = workers.die()
        if poisoned is not None:
            assert sum(poisoned in reads for reads in unanswered) >= 2
            assert poisoned in unanswered[-1]
