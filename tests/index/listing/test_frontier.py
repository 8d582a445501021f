"""Ranges of keys and their cuts, without I/O: a simulated service, any interleaving, any failures."""

import random
from bisect import bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.index.listing.frontier import Alphabets, Frontier, KeyRange, Span, cut_evenly, cut_galloping, pages_left

# One-character differences, digits only, long shared prefixes, astral planes, and the characters around "/".
text = st.text(st.sampled_from("019afz./!-é\uffff\U0001f600"), max_size=6) | st.text(max_size=4)
keys = st.builds(lambda head, tail: head + tail, st.sampled_from(["", "p/", "p/" + "long-" * 30]), text)


def learned(prefix: str, seen: list[str]) -> Alphabets:
    alphabets = Alphabets(prefix)
    alphabets.learn([key for key in sorted(seen) if key.startswith(prefix)])
    return alphabets


@given(st.lists(keys), keys, keys | st.none(), st.integers(0, 9), st.booleans())
def test_cuts_lie_strictly_inside_and_increase(
    seen: list[str], after: str, until: str | None, count: int, gallops: bool
) -> None:
    if until is not None and until < after:
        after, until = until, after
    span, alphabets = KeyRange(after, until), learned("", seen)
    cuts = cut_galloping(span, "", count, alphabets) if gallops else cut_evenly(span, count, alphabets)
    assert len(cuts) <= count
    assert cuts == sorted(set(cuts))
    assert all(after < cut and (until is None or cut < until) for cut in cuts)
    for cut in cuts:
        cut.encode()  # can be sent


@pytest.mark.parametrize(("until", "expected"), [("009999", 9), ("001999", 1), (None, 999)])
def test_what_is_left_is_told_in_pages_like_the_last(until: str | None, expected: int) -> None:
    alphabets = learned("", [f"{number:06}" for number in range(1000)])
    assert round(pages_left(KeyRange("000999", until), "000000", alphabets)) == pytest.approx(expected, rel=0.01)


class Service:
    """Pages over sorted keys, in rounds of up to `limit` requests, some of which fail and are asked for again."""

    def __init__(self, keys: list[str], *, page_keys: int = 1000, limit: int = 64) -> None:
        self.keys = sorted(keys)
        self.page_keys = page_keys
        self.limit = limit
        self.requests = 0
        self.rounds = 0

    def page(self, after: str, page_keys: int) -> tuple[list[str], bool]:
        start = bisect_right(self.keys, after) if after else 0
        return self.keys[start : start + page_keys], start + page_keys < len(self.keys)

    def run(self, *, folders: list[str] | None = None, chance: random.Random | None = None) -> list[str]:
        """All keys in the order in which the spans brought them, range by range."""
        frontier = Frontier("")
        found: dict[Span, list[str]] = {}
        running = list(frontier.active)
        while running:
            self.rounds += 1
            if folders and self.rounds == 2:
                frontier.mark(folders)
            batch = running
            if chance:
                chance.shuffle(batch)
                keep = chance.randint(1, len(batch))  # the rest is slow, or fails and is tried again
                batch, running = batch[:keep], batch[keep:]
            else:
                running = []
            replies = [(span, *self.page(span.cursor, self._length(chance))) for span in batch]
            for span, keys, is_truncated in replies:
                self.requests += 1
                mine = frontier.advance(span, keys, is_truncated=is_truncated)
                found.setdefault(span, []).extend(keys[:mine])
                running += [span] if not span.is_done else []
                if self.requests > 2:  # as the lister, which takes the first two pages one by one
                    running += frontier.cut(self.limit - len(frontier.active))
        assert not frontier.active
        assert frontier.share_done() == 1
        return [key for span in sorted(found, key=lambda span: span.range.after) for key in found[span]]

    def _length(self, chance: random.Random | None) -> int:
        return chance.randint(1, self.page_keys) if chance else self.page_keys


segments = st.text(st.sampled_from("01289afz-!.\U0001f600é"), min_size=1, max_size=4)
key_sets = st.sets(st.lists(segments, min_size=1, max_size=3).map("/".join), max_size=150) | st.sets(
    st.integers(0, 10**6).map(lambda number: f"{'shared-prefix/' * 5}{number:07}"), max_size=300
)


@given(key_sets, st.integers(1, 9), st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False))
def test_all_ranges_together_are_the_serial_listing_in_order(
    keys: set[str], page_keys: int, limit: int, knows_folders: bool, chance: random.Random
) -> None:
    folders = sorted({key[: key.index("/") + 1] for key in keys if "/" in key}) if knows_folders else None
    assert Service(list(keys), page_keys=page_keys, limit=limit).run(folders=folders, chance=chance) == sorted(keys)


_COUNT = 50_000
_CHANCE = random.Random(7)
_FOLDERS = ["test"] * 4 + ["train"] * 11 + ["unlabeled"] * 12 + ["val"]
# Made when they are tried: each worker of the tests imports this module.
SHAPES: dict[str, Callable[[int], str]] = {
    "flat": "file-{:08}".format,
    "deep": ("level=x/" * 20 + "file-{:08}").format,
    "unpadded": "img_{}.jpg".format,
    "folders": lambda number: f"dir{number // 200:04}/file-{number % 200:06}.jpg",
    "few folders": lambda number: f"{_FOLDERS[number * len(_FOLDERS) // _COUNT]}2017/{number:012}.jpg",
    # It has six hundred siblings, and holds nearly everything.
    "large folder": lambda number: (
        f"{'az'[number % 2]}{number:03}/" if number < 600 else f"m/{_CHANCE.getrandbits(64):x}"
    ),
    "hex": lambda _: f"{_CHANCE.getrandbits(64):016x}/obj",
    "words": lambda number: "".join(_CHANCE.choices("etaoinshrdlu", k=_CHANCE.randint(3, 12))) + str(number),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_prefix_takes_few_round_trips_and_few_requests_more_than_it_has_pages(shape: str) -> None:
    service = Service([SHAPES[shape](number) for number in range(_COUNT)], page_keys=250)
    folders = sorted({key[: key.index("/") + 1] for key in service.keys if "/" in key})[:1000]
    assert service.run(folders=folders) == service.keys
    assert service.requests <= 1.4 * 200
    assert service.rounds <= 30


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2000])
def test_a_small_prefix_is_listed_serially(count: int) -> None:
    service = Service([f"{number:06}" for number in range(count)])
    service.run()
    assert service.requests == -(-count // 1000)
