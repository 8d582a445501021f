"""The journal says which parts of a file are there, and never one more."""

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.sagemaker.download.disk import Journal, Stamp

STAMP = Stamp(b"v" * 16, b"b" * 16)


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    part_bytes = draw(st.integers(1, 50))
    size_bytes = draw(st.integers(1, 1000))
    count = -(-size_bytes // part_bytes)
    done = draw(st.lists(st.sampled_from([0, 1]), min_size=count, max_size=count))
    return Journal(STAMP, size_bytes, part_bytes, bytes(done))


@given(journals())
def test_a_journal_is_read_as_it_was_written(journal: Journal) -> None:
    assert Journal.parse(bytes(journal)) == journal


@given(journals(), st.data())
def test_a_journal_that_is_cut_short_or_has_a_tail_is_none(journal: Journal, data: st.DataObject) -> None:
    whole = bytes(journal)
    assert Journal.parse(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None
    assert Journal.parse(whole + b"\1") is None


@given(journals(), st.integers(0, 59), st.integers(1, 255))
def test_a_journal_whose_head_was_changed_is_none(journal: Journal, at: int, mask: int) -> None:
    data = bytearray(bytes(journal))
    data[at] ^= mask
    assert Journal.parse(bytes(data)) is None


@given(journals())
def test_what_is_missing_and_what_is_done_are_the_file(journal: Journal) -> None:
    covered = bytearray(journal.size_bytes)
    for part in journal.missing():
        assert 0 < part.end - part.start <= journal.part_bytes
        assert not any(covered[part.start : part.end])
        covered[part.start : part.end] = b"\1" * (part.end - part.start)
        assert not journal.done[part.number]
    assert covered.count(0) == journal.done_bytes
    assert covered.rfind(b"\0") + 1 == journal.least_bytes


@given(journals())
def test_each_mark_makes_one_part_less_to_fetch(journal: Journal) -> None:
    data = bytearray(bytes(journal))
    missing = list(journal.missing())
    for count, part in enumerate(missing, start=1):
        mark, at = journal.mark(part)
        data[at : at + len(mark)] = mark
        parsed = Journal.parse(bytes(data))
        assert parsed is not None
        assert list(parsed.missing()) == missing[count:]


def test_a_new_journal_has_nothing() -> None:
    journal = Journal.new(STAMP, 10, 4)
    assert [(part.start, part.end) for part in journal.missing()] == [(0, 4), (4, 8), (8, 10)]
    assert journal.done_bytes == journal.least_bytes == 0
