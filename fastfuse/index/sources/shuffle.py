"""``ShuffleConfig``: the order of an epoch. Pure; the order never changes between versions.

SageMaker says only that "the shuffling order is determined using the Seed value". fastfuse defines it like this:

    state = the 8 bytes of BLAKE2b("<seed>:<epoch>", 8 bytes of digest, both numbers in decimal), little-endian
    key of item i = output i of SplitMix64 that begins with `state`
    order = the items, in ascending order of their keys

SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16; also
https://prng.di.unimi.it/splitmix64.c) is three lines in every language, and returns each of 2**64 numbers once: no two
keys are equal, so every sort gives the same order. numpy's own permutations may change with its version (NEP 19).
"""

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def shuffled(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the items ``0 ... count - 1`` in the order of `epoch`.

    A million items take 0.05 s and 24 MB, of which 8 MB stay.
    """
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    state = np.frombuffer(digest, "<u8").astype("uint64")
    # Arrays of uint64 wrap around, as SplitMix64 requires.
    keys = np.arange(1, count + 1, dtype="uint64") * _GOLDEN_GAMMA + state
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    return np.argsort(keys).astype("int64", copy=False)
