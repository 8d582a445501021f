"""The records on disk: a journal has the parts of a file that are there, a stamp the version of its object."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import STAMP_BYTES, Journal, Stamp, Trust, version_of

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


REF = ObjectRef("bucket", "key", 3, '"etag"', 10**18)
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16


@pytest.mark.parametrize(
    "change",
    [{"bucket": "b"}, {"key": "k"}, {"size_bytes": 4}, {"etag": '"other"'}, {"etag": ""}, {"modified_ns": 10**18 + 1}],
)
def test_whatever_changes_of_an_object_makes_it_another_version(change: dict[str, object]) -> None:
    assert version_of(replace(REF, **change)) != version_of(REF)  # type: ignore[arg-type]
    assert version_of(replace(REF)) == version_of(REF)


def test_fields_do_not_run_into_each_other() -> None:
    assert version_of(ObjectRef("a", "bc", 1, "")) != version_of(ObjectRef("ab", "c", 1, ""))


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_a_stamp_is_read_as_it_was_written(version: bytes, boot: bytes) -> None:
    stamp = Stamp(version, boot)
    assert len(bytes(stamp)) == STAMP_BYTES
    assert Stamp.parse(bytes(stamp)) == stamp


@given(st.binary(max_size=80).filter(lambda data: len(data) != STAMP_BYTES))
def test_what_has_another_length_is_no_stamp(data: bytes) -> None:
    assert Stamp.parse(data) is None


@pytest.mark.parametrize(
    ("boot", "settled_ns", "changed_ns", "is_covered"),
    [
        (BOOT, 0, 100, True),
        (OTHER_BOOT, 0, 100, False),
        (OTHER_BOOT, 99, 100, False),
        (OTHER_BOOT, 100, 100, True),
    ],
)
def test_a_file_of_another_boot_is_believed_in_if_the_disk_was_waited_for_since(
    boot: bytes, settled_ns: int, changed_ns: int, *, is_covered: bool
) -> None:
    trust = Trust(boot=BOOT, settled_ns=settled_ns)
    assert trust.covers(Stamp(b"v" * 16, boot), changed_ns) is is_covered
