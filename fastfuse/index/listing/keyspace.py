"""Where to cut a range of keys so that both halves hold some, without having seen them. Pure: no I/O, no clock.

Keys are compared as S3 does, by UTF-8 bytes, which for valid text is Python's order of `str`. A range is
``(after, until]``: ``start-after`` is exclusive, and a page that runs past `until` is cut there.

Names in a data set are mostly counters, hashes and a few fixed words. So each position of a key (behind the listed
prefix) is a digit in an alphabet learned from the keys seen there: one digit seen means that all ten may come, a hex
digit all sixteen, a lone letter is taken as part of a fixed word. In these digits a key is a number, the pages listed
so far tell how many keys lie in how much of the number line, and a cut is a number in between, written as a key again.

A guess that is wrong costs one LIST that finds nothing; it can never lose a key, because the ranges made by a cut are
disjoint and cover what was cut, whatever the alphabets say.
"""

import string
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Alphabets", "KeyRange", "cut_evenly", "cut_galloping", "pages_left"]

# Longer names differ long before; it also bounds the arithmetic.
_MAX_POSITIONS = 128
# Enough digits to tell apart 2^48 keys behind a common prefix.
_RESOLUTION = 1 << 48
# Of each page so many keys, evenly spread, teach the alphabets: what the rest would add is not worth their time.
_SAMPLES_PER_PAGE = 16
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
_MAX_KEY_BYTES = 1024

_HEX = "abcdef"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys greater than `after` and, unless it is None, not greater than `until`."""

    after: str
    until: str | None = None

    def __contains__(self, key: str) -> bool:
        return self.after < key and (self.until is None or key <= self.until)

    def split(self, cuts: Iterable[str]) -> list["KeyRange"]:
        """The pieces between increasing `cuts`, all inside the range: disjoint, and together the range."""
        bounds = [self.after, *cuts]
        return [KeyRange(low, high) for low, high in zip(bounds, [*bounds[1:], self.until], strict=True)]


class Alphabets:
    """The characters that may stand at each position behind `prefix`, by what was seen there."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._seen: list[set[str]] = []
        self._letters: dict[int, str] = {}

    def learn(self, keys: list[str]) -> None:
        """Learn from a page of keys, all beginning with the prefix."""
        step = max(len(keys) // _SAMPLES_PER_PAGE, 1)
        start = len(self.prefix)
        for key in [*keys[::step], *keys[-1:]]:
            tail = key[start : start + _MAX_POSITIONS]
            while len(self._seen) < len(tail):
                self._seen.append(set())
            for position, character in enumerate(tail):
                seen = self._seen[position]
                if character not in seen:
                    seen.add(character)
                    self._letters.pop(position, None)

    def letters(self, position: int) -> str:
        """What may stand at `position`, in order; empty where no key was that long."""
        if position not in self._letters:
            seen = self._seen[position] if position < len(self._seen) else set()
            self._letters[position] = "".join(sorted(_completed(seen)))
        return self._letters[position]


def cut_evenly(span: KeyRange, count: int, alphabets: Alphabets) -> list[str]:
    """Up to `count` increasing keys strictly inside `span` that cut it into parts of equal width."""
    line = _NumberLine(span, alphabets)
    return line.keys(line.low + (line.high - line.low) * step // (count + 1) for step in range(1, count + 1))


def pages_left(span: KeyRange, start: str, alphabets: Alphabets) -> float:
    """How many more pages `span` would take, if they were as wide as the one from `start` to ``span.after``."""
    line = _NumberLine(span, alphabets, at_least=start)
    return (line.high - line.low) / max(line.low - line.number(start), 1)


def cut_galloping(span: KeyRange, start: str, count: int, alphabets: Alphabets) -> list[str]:
    """Up to `count` increasing keys strictly inside `span`, at 1, 3, 7, 15 ... pages' distance behind its beginning.

    For a range of which nobody knows how far its keys reach. A page is as wide as the one from `start` to
    ``span.after``.
    """
    line = _NumberLine(span, alphabets, at_least=start)
    page_width = max(line.low - line.number(start), 1)
    return line.keys(
        min(line.low + page_width * ((2 << step) - 1), line.high - 1)
        for step in range(min(count, _RESOLUTION.bit_length()))
    )


class _NumberLine:
    """Keys as whole numbers: the digits behind what all keys of interest have in common."""

    def __init__(self, span: KeyRange, alphabets: Alphabets, *, at_least: str | None = None) -> None:
        self._span = span
        self._alphabets = alphabets
        prefix = alphabets.prefix
        known = [key for key in (span.after, span.until, at_least) if key is not None and key > prefix]
        # Positions where nothing can differ are skipped; without an upper bound anything may.
        self._skipped = _common_length([key[len(prefix) :] for key in known]) if span.until is not None else 0
        self._common = (known[0] if known else prefix)[: len(prefix) + self._skipped]
        self._bases = self._choose_positions()
        self.low = self.number(span.after)
        self.high = self.number(span.until) if span.until is not None else self._end()

    def _choose_positions(self) -> list[str]:
        positions, product, position = [], 1, self._skipped
        while product < _RESOLUTION and (letters := self._alphabets.letters(position)):
            positions.append(letters)
            product *= len(letters)
            position += 1
        return positions

    def _end(self) -> int:
        end = 1
        for letters in self._bases:
            end *= len(letters)
        return end

    def number(self, key: str) -> int:
        """The position of `key`; of a key beyond the alphabet, the nearest below it."""
        tail = key[len(self._common) :] if key.startswith(self._common) else ""
        value = 0
        is_exact = True
        for position, letters in enumerate(self._bases):
            digit = 0
            if is_exact and position < len(tail):
                digit = min(bisect_left(letters, tail[position]), len(letters) - 1)
                is_exact = letters[digit] == tail[position]
            value = value * len(letters) + digit
        return value

    def keys(self, numbers: Iterable[int]) -> list[str]:
        """`numbers` as keys, without those that do not lie strictly inside the range or after the one before."""
        found: list[str] = []
        last = self._span.after
        for number in numbers:
            key = self._key(number)
            if last < key and (self._span.until is None or key < self._span.until):
                found.append(key)
                last = key
        return found

    def _key(self, number: int) -> str:
        letters = []
        for alphabet in reversed(self._bases):
            number, digit = divmod(number, len(alphabet))
            letters.append(alphabet[digit])
        # Trailing lowest digits add nothing but length: the key without them sorts just before.
        tail = "".join(reversed(letters))
        for position in range(len(tail) - 1, 0, -1):
            if tail[position] != self._bases[position][0]:
                break
            tail = tail[:position]
        key = self._common + tail
        return key if len(key.encode()) <= _MAX_KEY_BYTES else self._span.after


def _common_length(keys: list[str]) -> int:
    """How many characters all `keys` begin with."""
    if not keys:
        return 0
    first, last = min(keys), max(keys)
    differing = (position for position, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return next(differing, len(first))


def _completed(seen: set[str]) -> set[str]:
    """`seen` and what is likely to come beside it."""
    found = set(seen)
    digits = seen & set(string.digits)
    for letters in (string.ascii_lowercase, string.ascii_uppercase):
        present = seen & set(letters)
        hexadecimal = set(letters[: len(_HEX)])
        if digits and present and present <= hexadecimal:
            found |= hexadecimal | set(string.digits)
        elif len(present) > 1:
            found |= set(letters)
    return found | set(string.digits) if digits else found
