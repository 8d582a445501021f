"""Cutting ranges of keys: whatever the alphabets say, the pieces are disjoint and cover the range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.index.listing.frontier import Alphabets, KeyRange, cut_evenly, cut_galloping, pages_left

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


@given(st.lists(keys, unique=True), keys)
def test_the_pieces_of_a_split_hold_each_key_of_the_range_once(cuts: list[str], key: str) -> None:
    span = KeyRange("")
    pieces = span.split(sorted(set(cuts) - {""}))
    assert sum(key in piece for piece in pieces) == (key in span)


def test_a_counter_is_cut_where_its_digits_say() -> None:
    alphabets = learned("", [f"file-{number:08}" for number in range(1000)])
    assert cut_evenly(KeyRange("file-00000000", "file-00100000"), 3, alphabets) == [
        "file-00025", "file-0005", "file-00075",
    ]  # fmt: skip


def test_hexadecimal_names_are_cut_into_equal_parts() -> None:
    alphabets = learned("", [f"{number * 65536 // 7:04x}" for number in range(7)])
    assert cut_evenly(KeyRange("0000", "ffff"), 3, alphabets) == ["3fff", "7fff", "bfff"]


def test_galloping_doubles_the_distance_from_the_last_page() -> None:
    alphabets = learned("", [f"{number:06}" for number in range(1000)])
    cuts = cut_galloping(KeyRange("000999"), "000000", 4, alphabets)
    assert [round(int(cut.ljust(6, "0")) / 1000) for cut in cuts] == [2, 4, 8, 16]


@pytest.mark.parametrize(("until", "expected"), [("009999", 9), ("001999", 1), (None, 999)])
def test_what_is_left_is_told_in_pages_like_the_last(until: str | None, expected: int) -> None:
    alphabets = learned("", [f"{number:06}" for number in range(1000)])
    assert round(pages_left(KeyRange("000999", until), "000000", alphabets)) == pytest.approx(expected, rel=0.01)


def test_a_single_letter_is_a_fixed_word_and_two_are_an_alphabet() -> None:
    alphabets = learned("p/", ["p/file0", "p/file1", "p/gile1"])
    assert alphabets.letters(0) == "abcdefghijklmnopqrstuvwxyz"
    assert alphabets.letters(1) == "i"
    assert alphabets.letters(4) == "0123456789"
    assert alphabets.letters(5) == ""
