from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.s3.blocks import Blocks


def units(pieces: list[tuple[int, int]]) -> list[int]:
    return [unit for start, length in pieces for unit in range(start, start + length)]


@given(
    st.integers(1, 200),
    st.integers(1, 40),
    st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=60),
    st.randoms(),
)
def test_pieces_never_overlap_nothing_is_lost_and_what_fits_into_a_free_block_is_found(
    count: int, most: int, steps: list[int | None], random: Random
) -> None:
    blocks = Blocks(count, most)
    held: list[tuple[int, int]] = []
    for length in steps:
        if length is None:
            if held:
                blocks.give(*held.pop(random.randrange(len(held))))
        elif length <= most:
            could = any(free >= 1 << (length - 1).bit_length() for _, free in blocks.free())
            start = blocks.take(length)
            assert (start is not None) == could
            if start is not None:
                held.append((start, length))
        assert sorted(units(held) + units(list(blocks.free()))) == list(range(count))
    for piece in held:
        blocks.give(*piece)
    assert sorted(blocks.free()) == sorted(Blocks(count, most).free())
