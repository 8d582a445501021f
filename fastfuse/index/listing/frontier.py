"""Which ranges of keys are being listed, and which to cut when there is capacity for more. Pure: no I/O, no clock.

The lister tells what each page brought (`advance`) and asks for ranges to begin with (`cut`); the ranges of all spans
are disjoint and cover the prefix at any time, whatever fails and is tried again.

There are two ways to cut. Where folders are known (`mark`: a LIST with a delimiter names a thousand of them for one
request) a range is cut between folders, and no piece is empty. Elsewhere a cut is a guess from `keyspace`, and a guess
that hits nothing costs a request. So the first pages are listed one after the other, and after that guesses are bounded
by what has been found: a prefix of a few thousand objects takes a handful of requests more than one listed serially, a
prefix of a million at most a quarter more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fastfuse.index.listing.keyspace import Alphabets, KeyRange, cut_evenly, cut_galloping, pages_left

__all__ = ["Frontier", "Span"]

# Small prefixes stay serial: with so many pages there is nothing to gain from guessing.
_SERIAL_PAGES: Final = 2
# How many guesses may be unproven, and pages' worth of keys missing on those listed: four, and one for each four pages.
_FREE_GUESSES: Final = 4
_PAGES_PER_GUESS: Final = 4
# A range is worth cutting where each piece has so many pages to bring, for the last page of each is half empty.
# The less there is to list the more it is round trips that count, and the fewer the requests that can be lost.
_MIN_PAGES_PER_PIECE: Final = 2.0
_MAX_PAGES_PER_PIECE: Final = 6.0
_PAGES_UNTIL_LARGER_PIECES: Final = 64


@dataclass(slots=True, eq=False)
class Span:
    """One range that is listed page by page from `cursor` on."""

    range: KeyRange
    cursor: str
    pages: int = 0
    is_done: bool = False
    # Where the last page began: how densely keys lie is taken from that page alone, for it may be otherwise elsewhere.
    last_page_after: str = ""
    # What `keyspace.pages_left` said after the last page.
    pages_left: float = 0.0

    @property
    def rest(self) -> KeyRange:
        """What has not been listed yet."""
        return KeyRange(self.cursor, self.range.until)


class Frontier:
    """All spans of one prefix, from one that covers it to none that is not done."""

    def __init__(self, prefix: str) -> None:
        self._alphabets = Alphabets(prefix)
        self.active: list[Span] = [Span(KeyRange(""), "")]
        self.page_count = 0
        self.key_count = 0
        self._full_page = 1
        self._greatest = ""
        self._marks: list[str] = []

    def mark(self, folders: Iterable[str]) -> None:
        """Tell of folders (with their ``/``) that hold at least one key each."""
        self._marks = sorted({*self._marks, *folders})

    def advance(self, span: Span, keys: list[str], *, is_truncated: bool) -> int:
        """Take a page that was listed after ``span.cursor``; returns how many of its `keys` belong to the span.

        `keys` are sorted. The rest of them lies behind the span's end, where another span lists it.
        """
        until = span.range.until
        self._greatest = max(self._greatest, keys[-1]) if keys else self._greatest
        is_last = not is_truncated or (until is not None and bool(keys) and keys[-1] >= until)
        mine = keys if until is None or not keys or keys[-1] <= until else [key for key in keys if key <= until]
        self.page_count += 1
        self.key_count += len(mine)
        self._full_page = max(self._full_page, len(keys))
        if mine:
            span.pages += 1
            span.last_page_after = span.cursor or mine[0]
            span.cursor = mine[-1]
            self._alphabets.learn(mine)
            if not is_last:
                span.pages_left = self._estimate(span)
        if is_last:
            span.is_done = True
            self.active.remove(span)
        return len(mine)

    def share_done(self) -> float:
        """About how much of the listing is done, from 0 to 1."""
        left = sum(max(span.pages_left, 1.0) for span in self.active)
        return self.page_count / (self.page_count + left)

    def cut(self, capacity: int) -> list[Span]:
        """New spans to list, at most `capacity`, cut off from those that have most left."""
        begun: list[Span] = []
        while capacity > len(begun) and self.page_count >= _SERIAL_PAGES:
            candidates = [span for span in self.active if span.pages and span.pages_left >= self._piece_pages()]
            if not candidates:
                break
            span = max(candidates, key=lambda candidate: candidate.pages_left)
            new = self._cut(span, capacity - len(begun))
            begun += new
            if not new:
                span.pages_left = 0.0  # nothing to cut until its next page
        return begun

    def _piece_pages(self) -> float:
        return min(_MIN_PAGES_PER_PIECE + self.page_count / _PAGES_UNTIL_LARGER_PIECES, _MAX_PAGES_PER_PIECE)

    def _guesses_left(self) -> int:
        unproven = sum(not span.pages for span in self.active)
        wasted = self.page_count - self.key_count // self._full_page
        return _FREE_GUESSES + self.page_count // _PAGES_PER_GUESS - wasted - unproven

    def _estimate(self, span: Span) -> float:
        """How many more pages `span` will bring."""
        marks = self._marks_in(span.rest)
        if marks:
            return len(marks) / self._marks_per_page(span)
        return pages_left(span.rest, span.last_page_after, self._alphabets)

    def _cut(self, span: Span, capacity: int) -> list[Span]:
        cuts = self._choose_cuts(span, min(capacity, int(span.pages_left / self._piece_pages())))
        if not cuts:
            return []
        mine, *others = span.rest.split(cuts)
        span.range = KeyRange(span.range.after, mine.until)
        span.pages_left = 0.0 if self._marks_in(mine) else span.pages_left / (len(cuts) + 1)
        spans = [Span(piece, piece.after) for piece in others]
        self.active += spans
        return spans

    def _choose_cuts(self, span: Span, count: int) -> list[str]:
        rest = span.rest
        if marks := self._marks_in(rest):
            count = min(count, len(marks))
            return [self._marks[marks[len(marks) * step // (count + 1)]] for step in range(1, count + 1)]
        count = min(count, self._guesses_left())
        if count <= 0:
            return []
        if self._greatest > span.cursor:
            return cut_evenly(rest, count, self._alphabets)
        if any(other.range.after >= span.cursor and not other.pages for other in self.active if other is not span):
            return []  # guesses behind it are under way and will tell how far the keys reach
        return cut_galloping(rest, span.last_page_after, count, self._alphabets)

    def _marks_in(self, span: KeyRange) -> range:
        """Indexes of the marks strictly inside `span`."""
        low = bisect_right(self._marks, span.after)
        high = len(self._marks) if span.until is None else bisect_left(self._marks, span.until)
        return range(low, max(low, high))

    def _marks_per_page(self, span: Span) -> float:
        passed = self._marks_in(KeyRange(span.range.after, span.cursor))
        return max(len(passed), 1) / span.pages
