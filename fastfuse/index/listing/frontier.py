"""Which ranges of keys are being listed, and where to cut them when there is capacity for more. Pure: no I/O, no clock.

`Frontier` holds the ranges (`Span`) of one prefix. The lister reports what each page brought (`advance`) and asks for
new ranges (`cut`). The ranges are disjoint and cover the prefix at any time, also when a request fails and is repeated.

There are two ways to cut. Where folders are known (`mark`: a LIST with a delimiter returns a thousand of them for one
request), a range is cut between folders, and no piece is empty. Elsewhere, and in a folder of many pages, a cut is a
guess, and a guess that hits nothing costs one request. So the first pages are listed serially, and the pages found so
far bound the guesses: a prefix of a few thousand objects takes a handful of requests more than a serial listing, a
prefix of a million at most a quarter more.

A guess treats keys as numbers. Names in a data set are mostly counters, hashes and a few fixed words, so each position
of a key (behind the listed prefix) is a digit in an alphabet learned from the keys seen there (`Alphabets`). One
decimal digit seen means that all ten may come, a hex digit all sixteen; a lone letter is part of a fixed word. The
pages listed so far show how many keys lie in how much of the number line, and a cut is a number in between, written as
a key.

Keys are compared as S3 does, by UTF-8 bytes, which for valid text is Python's order of `str`. A range is
``(after, until]``: ``start-after`` is exclusive, and a page that runs past `until` is cut there. A wrong guess never
loses a key, because the pieces of a cut are disjoint and cover the range.
"""

import math
import string
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from os.path import commonprefix
from typing import Final

from fastfuse.objects import MAX_KEY_BYTES

LAST_CHARACTER: Final = "\U0010ffff"
# Enough digits to distinguish 2^48 keys behind a common prefix.
_RESOLUTION = 1 << 48
# The alphabets learn from this many keys a page, evenly spread: the other keys would add little.
_SAMPLES_PER_PAGE = 16

_HEX = "abcdef"
# Unproven guesses and wasted pages together may be four, and one more for each four pages listed.
_FREE_GUESSES: Final = 4
_PAGES_PER_GUESS: Final = 4
# A range is cut only if each piece has this many pages, because the last page of each piece is half empty.
# The minimum grows with the listing: in a small one round trips count for more than lost requests.
_MIN_PAGES_PER_PIECE: Final = 2.0
_MAX_PAGES_PER_PIECE: Final = 6.0
_PAGES_UNTIL_LARGER_PIECES: Final = 64
# A folder of so many pages is cut off from the others, which are no measure of it.
_PAGES_OF_LARGE_FOLDER: Final = 3


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys greater than `after` and, unless it is None, not greater than `until`."""

    after: str
    until: str | None = None

    def split(self, cuts: Iterable[str]) -> list["KeyRange"]:
        """Return the pieces between increasing `cuts` inside the range: disjoint, and together the range."""
        bounds = [self.after, *cuts]
        return [KeyRange(low, high) for low, high in zip(bounds, [*bounds[1:], self.until], strict=True)]


class Alphabets:
    """The characters that may stand at each position behind `prefix`, judged by those seen there."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._seen: list[set[str]] = []
        self._letters: dict[int, str] = {}

    def learn(self, keys: list[str]) -> None:
        """Learn from a page of keys, which all begin with the prefix."""
        step = max(len(keys) // _SAMPLES_PER_PAGE, 1)
        tails = [key[len(self.prefix) : MAX_KEY_BYTES] for key in [*keys[::step], *keys[-1:]]]
        for position, characters in enumerate(zip_longest(*tails, fillvalue="")):
            if position == len(self._seen):
                self._seen.append({""})  # where a key ends
            if not self._seen[position].issuperset(characters):
                self._seen[position].update(characters)
                self._letters.pop(position, None)

    def letters(self, position: int) -> str:
        """Return the characters that may stand at `position`, in order; none where no key was that long."""
        if position not in self._letters:
            seen = self._seen[position] if position < len(self._seen) else set()
            self._letters[position] = "".join(sorted(_completed(seen)))
        return self._letters[position]


def cut_evenly(span: KeyRange, count: int, alphabets: Alphabets) -> list[str]:
    """Return up to `count` increasing keys strictly inside `span` that cut it into parts of equal width."""
    line = _NumberLine(span, alphabets)
    return line.keys(line.low + (line.high - line.low) * step // (count + 1) for step in range(1, count + 1))


def pages_left(span: KeyRange, start: str, alphabets: Alphabets) -> float:
    """Estimate the pages that `span` takes if they are as wide as the one from `start` to ``span.after``."""
    line = _NumberLine(span, alphabets, at_least=start)
    return (line.high - line.low) / max(line.low - line.number(start), 1)


def cut_galloping(span: KeyRange, start: str, count: int, alphabets: Alphabets) -> list[str]:
    """Return up to `count` increasing keys strictly inside `span`, 1, 3, 7, 15 ... pages behind its beginning.

    This suits a range whose last key is unknown. A page is as wide as the one from `start` to ``span.after``.
    """
    line = _NumberLine(span, alphabets, at_least=start)
    page_width = max(line.low - line.number(start), 1)
    return line.keys(
        min(line.low + page_width * ((2 << step) - 1), line.high - 1)
        for step in range(min(count, _RESOLUTION.bit_length()))
    )


class _NumberLine:
    """Keys as whole numbers: their digits are the characters behind the common beginning of `span` and `at_least`."""

    def __init__(self, span: KeyRange, alphabets: Alphabets, *, at_least: str | None = None) -> None:
        self._span = span
        self._alphabets = alphabets
        prefix = alphabets.prefix
        known = [key for key in (span.after, span.until, at_least) if key is not None and key > prefix]
        # Positions where keys cannot differ are skipped; without an upper bound, keys may differ anywhere.
        tails = [key[len(prefix) :] for key in known] if span.until is not None else []
        self._skipped = len(commonprefix(tails))  # noqa: RUF071 - characters are compared, not path components
        self._common = (known[0] if known else prefix)[: len(prefix) + self._skipped]
        self._bases = self._choose_positions()
        self.low = self.number(span.after)
        self.high = self.number(span.until) if span.until is not None else math.prod(map(len, self._bases))

    def _choose_positions(self) -> list[str]:
        positions, product, position = [], 1, self._skipped
        while product < _RESOLUTION and (letters := self._alphabets.letters(position)):
            positions.append(letters)
            product *= len(letters)
            position += 1
        return positions

    def number(self, key: str) -> int:
        """Return the number of `key`; for a key outside the alphabets, the nearest number above it."""
        tail = key[len(self._common) :] if key.startswith(self._common) else ""
        value = 0
        is_exact = True
        for position, letters in enumerate(self._bases):
            digit = 0
            if is_exact and position < len(tail):
                digit = bisect_left(letters, tail[position])
                is_exact = letters[digit : digit + 1] == tail[position]
            value = value * len(letters) + digit
        return value

    def keys(self, numbers: Iterable[int]) -> list[str]:
        """Return `numbers` as keys, without those outside the range and those not greater than the key before."""
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
        key = self._common + "".join(reversed(letters))
        return key if len(key.encode()) <= MAX_KEY_BYTES else self._span.after


def _completed(seen: set[str]) -> set[str]:
    """Return `seen` and the characters that are likely to come with it."""
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


@dataclass(slots=True, eq=False)
class Span:
    """One range that is listed page by page from `cursor` on."""

    range: KeyRange
    cursor: str
    # It began at a guess, and not at a folder.
    is_guess: bool = False
    pages: int = 0
    is_done: bool = False
    # The beginnings of the last pages. The density of keys is that of the last page, because it may differ elsewhere.
    page_afters: deque[str] = field(default_factory=lambda: deque(maxlen=_PAGES_OF_LARGE_FOLDER))
    # The estimate after the last page.
    pages_left: float = 0.0

    @property
    def rest(self) -> KeyRange:
        """The range that has not been listed yet."""
        return KeyRange(self.cursor, self.range.until)


class Frontier:
    """All spans of one prefix: at first one that covers it, at the end none."""

    def __init__(self, prefix: str) -> None:
        self._alphabets = Alphabets(prefix)
        self.active: list[Span] = [Span(KeyRange(""), "")]
        self.page_count = 0
        self._guess_pages = self._guess_keys = 0
        self._full_page = 1
        # The greatest key seen, by folder ("" for those in no marked folder).
        self._greatest: dict[str, str] = {}
        self._marks: list[str] = []

    def mark(self, folders: Iterable[str]) -> None:
        """Add folders (with their ``/``) that hold at least one key each."""
        self._marks = sorted({*self._marks, *folders})

    def advance(self, span: Span, keys: list[str], *, is_truncated: bool) -> int:
        """Take a page that was listed after ``span.cursor``; return how many of its `keys` belong to the span.

        `keys` are sorted. The others lie behind the span's end, where another span lists them.
        """
        until = span.range.until
        for key in keys[-1:]:
            folder = self._folder(key)
            self._greatest[folder] = max(self._greatest.get(folder, ""), key)
        is_last = not is_truncated or (until is not None and bool(keys) and keys[-1] >= until)
        mine = keys if until is None else keys[: bisect_right(keys, until)]
        self.page_count += 1
        if span.is_guess:
            self._guess_pages += 1
            self._guess_keys += len(mine)
        self._full_page = max(self._full_page, len(keys))
        if mine:
            span.pages += 1
            span.page_afters.append(span.cursor or mine[0])
            span.cursor = mine[-1]
            self._alphabets.learn(mine)
            if not is_last:
                span.pages_left = self._estimate(span)
        if is_last:
            span.is_done = True
            self.active.remove(span)
        return len(mine)

    def share_done(self) -> float:
        """Estimate the share of the listing that is done, from 0 to 1."""
        left = sum(max(span.pages_left, 1.0) for span in self.active)
        return self.page_count / (self.page_count + left)

    def cut(self, capacity: int) -> list[Span]:
        """Cut up to `capacity` new spans off those that have most left, and return them."""
        begun: list[Span] = []
        while capacity > len(begun):
            candidates = [span for span in self.active if span.pages_left >= self._piece_pages()]
            if not candidates:
                break
            span = max(candidates, key=lambda candidate: candidate.pages_left)
            new = self._cut(span, capacity - len(begun))
            begun += new
            if not new:
                span.pages_left = 0.0  # do not try again before its next page
        return begun

    def _piece_pages(self) -> float:
        return min(_MIN_PAGES_PER_PIECE + self.page_count / _PAGES_UNTIL_LARGER_PIECES, _MAX_PAGES_PER_PIECE)

    def _guesses_left(self) -> int:
        unproven = sum(span.is_guess and not span.pages for span in self.active)
        wasted = self._guess_pages - self._guess_keys // self._full_page
        return _FREE_GUESSES + self.page_count // _PAGES_PER_GUESS - wasted - unproven

    def _estimate(self, span: Span) -> float:
        """Estimate the pages that `span` will still bring."""
        marks = self._marks_in(span.rest)
        if not marks:
            return pages_left(self._rest_of_folder(span), span.page_afters[-1], self._alphabets)
        passed = self._marks_in(KeyRange(span.range.after, span.cursor))
        least = _MAX_PAGES_PER_PIECE if self._is_in_large_folder(span) else 0.0
        return max(len(marks) * span.pages / max(len(passed), 1), least)

    def _cut(self, span: Span, capacity: int) -> list[Span]:
        cuts = self._choose_cuts(span, min(capacity, int(span.pages_left / self._piece_pages())))
        if not cuts:
            return []
        is_guess = not self._marks_in(span.rest)
        mine, *others = span.rest.split(cuts)
        span.range = KeyRange(span.range.after, mine.until)
        span.pages_left = 0.0 if self._marks_in(mine) else span.pages_left / (len(cuts) + 1)
        spans = [Span(piece, piece.after, is_guess) for piece in others]
        self.active += spans
        return spans

    def _choose_cuts(self, span: Span, count: int) -> list[str]:
        rest = span.rest
        if marks := self._marks_in(rest):
            count = min(count, len(marks))
            first = 0 if self._is_in_large_folder(span) else 1  # the next folder, or a piece further
            steps = range(first, first + count)
            return [self._marks[marks[len(marks) * step // (count + first)]] for step in steps]
        count = min(count, self._guesses_left())
        if count <= 0:
            return []
        rest, folder = self._rest_of_folder(span), self._folder(span.cursor)
        if self._greatest.get(folder, "") > span.cursor:
            return cut_evenly(rest, count, self._alphabets)
        unproven = [other.range.after for other in self.active if not other.pages]
        if any(after >= span.cursor and self._folder(after) == folder for after in unproven):
            return []  # guesses behind it are in flight and will show how far the keys reach
        return cut_galloping(rest, span.page_afters[-1], count, self._alphabets)

    def _folder(self, key: str) -> str:
        """Return the marked folder in which `key` lies, or an empty string."""
        at = bisect_right(self._marks, key)
        return self._marks[at - 1] if at and key.startswith(self._marks[at - 1]) else ""

    def _rest_of_folder(self, span: Span) -> KeyRange:
        """Return the part of the span's rest that lies in the folder of its cursor; all of it if that is in none."""
        rest, folder = span.rest, self._folder(span.cursor)
        end = folder + LAST_CHARACTER
        return KeyRange(rest.after, end) if folder and (rest.until is None or end < rest.until) else rest

    def _is_in_large_folder(self, span: Span) -> bool:
        """Return whether the last pages of `span` lay in one folder."""
        afters = span.page_afters
        return len(afters) == _PAGES_OF_LARGE_FOLDER and not self._marks_in(KeyRange(afters[0], span.cursor))

    def _marks_in(self, span: KeyRange) -> range:
        """Return the indexes of the marks strictly inside `span`."""
        low = bisect_right(self._marks, span.after)
        high = len(self._marks) if span.until is None else bisect_left(self._marks, span.until)
        return range(low, high)
