import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfuse.filesystem.kernel.fuse import replies
from fastfuse.filesystem.kernel.in_hand import Read, ReadsInHand

# Where `replies` keeps the READs, after the message and two numbers; and how, but for what nobody looks at.
_READS = (8 << 10) + 16
_KEPT = struct.Struct("=8xQQ24xQI20xII24x")  # number, inode, offset, size, crashes, whether it is begun

READS = st.builds(Read, st.integers(2, 4), st.integers(0, 3).map(lambda n: n * 10), st.just(10))


class Workers:
    """One worker after the other, with what each finds of the last one."""

    def __init__(self) -> None:
        self.hand = ReadsInHand()
        self.requests = bytearray(replies.REQUESTS_BYTES)

    def begin(self, read: Read, *, is_answered: bool = False) -> None:
        at = _READS + _KEPT.size * (10 * read.inode + read.offset // 10)
        *_, crashes, _ = _KEPT.unpack_from(self.requests, at)
        _KEPT.pack_into(self.requests, at, at * (not is_answered), *read, crashes * (not is_answered), 1)

    def die(self, *, is_blameless: bool = False) -> Read | None:
        return self.hand.worker_died(self.requests, is_blameless=is_blameless)


A, B, C = (Read(inode, 0, 10) for inode in (2, 3, 9))
BY_LETTER = {"a": A, "b": B, "c": C}


@pytest.mark.parametrize(
    "lives",
    [
        # Two crashes with the same read in hand poison it.
        [("ab", "", "ab", 1), ("a", "a", "b", 1)],
        # Of several suspects in hand none is poisoned before one is alone.
        [("ac", "", "ac", 1), ("ac", "", "ac", 2), ("a", "a", "c", 2)],
        # A suspect that was answered is none any more.
        [("a", "", "a", 1), ("Aa", "", "a", 1)],
        # A worker that begins nothing is held against no read.
        [("a", "", "a", 1), *3 * [("", "", "a", 1)]],
        # Nor are kills from outside, and suspects stay what they are.
        [("a", "", "a", 1), *10 * [("ab!", "", "a", 1)], ("ab", "a", "b", 1)],
    ],
)
def test_what_workers_had_in_hand_makes_suspects_and_poisons_one(lives: list[tuple[str, str, str, int]]) -> None:
    """Each life: the reads that are begun, a capital of which is answered, and its end, by a kill if there is a `!`."""
    workers = Workers()
    for begun, poisoned, suspects, most_deaths in lives:
        for letter in begun.rstrip("!"):
            workers.begin(BY_LETTER[letter.lower()], is_answered=letter.isupper())
        assert workers.die(is_blameless="!" in begun) == BY_LETTER.get(poisoned)
        assert {*workers.hand.suspects.values()} == {BY_LETTER[letter] for letter in suspects}
        assert workers.hand.most_deaths == most_deaths


def test_a_read_is_poisoned_that_has_a_byte_of_one_that_is() -> None:
    hand = Workers().hand
    hand.poisoned.append(A)
    asked = A, Read(2, 9, 4096), Read(2, 10, 4096), B
    assert [hand.is_poisoned(read) for read in asked] == [True, True, False, False]


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
