"""The order of an epoch: a permutation, the same for ever, and another one for each seed and epoch."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.index.sources.shuffle import shuffled

_MASK = (1 << 64) - 1


def documented(count: int, seed: int, epoch: int) -> list[int]:
    """As the module's docstring says it, without numpy."""
    state = int.from_bytes(hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest(), "little")
    keys = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        key = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        keys.append(key ^ (key >> 31))
    return sorted(range(count), key=keys.__getitem__)


@given(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 40))
def test_the_order_is_the_documented_permutation(count: int, seed: int, epoch: int) -> None:
    assert shuffled(count, seed, epoch).tolist() == documented(count, seed, epoch)
