"""Mutates inputs by bytes and by tokens, from a seed: all of the fuzzer of CI, and half of that of ``make fuzz``."""

import random
from collections.abc import Iterator, Sequence

_MAX_CHANGES = 4
_MAX_BYTES = 1 << 14
_NUMBERS = (b"0", b"1", b"-1", b"255", b"65536", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"1e9")


def mutated(inputs: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield mutants of `inputs` for ever; the same ones for the same arguments."""
    generator = random.Random(seed)
    while True:
        yield mutant(generator.choice(inputs), generator, inputs, tokens)


def mutant(data: bytes, generator: random.Random, inputs: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Return `data` with a few changes, some of which are parts of other `inputs`."""
    for _ in range(generator.randint(1, _MAX_CHANGES)):
        data = _changed(data, generator, inputs, tokens)
    return data[:_MAX_BYTES]


def _changed(data: bytes, generator: random.Random, inputs: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    start = generator.randint(0, len(data))
    end = min(start + generator.choice((0, 1, 1, 4, 16, 64)), len(data))
    match generator.randrange(8):
        case 0:  # another byte
            return data[:start] + generator.randbytes(1) + data[start + 1 :]
        case 1:  # a bit
            flipped = bytes([data[start] ^ 1 << generator.randrange(8)]) if start < len(data) else b""
            return data[:start] + flipped + data[start + 1 :]
        case 2:  # less
            return data[:start] + data[end:]
        case 3:  # more of the same
            return data[:end] + data[start:end] * generator.choice((1, 2, 50)) + data[end:]
        case 4:  # a word of the format, in between or in place of something
            return data[:start] + generator.choice(tokens) + data[generator.choice((start, end)) :]
        case 5:  # another number
            return data[:start] + generator.choice(_NUMBERS) + data[end:]
        case 6:  # the end of another input
            other = generator.choice(inputs)
            return data[:start] + other[generator.randint(0, len(other)) :]
        case _:  # one word of the format for another
            old, new = generator.choice(tokens), generator.choice(tokens)
            return data.replace(old, new, generator.choice((-1, 1)))
