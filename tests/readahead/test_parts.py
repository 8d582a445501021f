"""The parts of one file: which holds what, and which have waited for too long."""

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead.parts import FileParts, Part
from tests.readahead.readers import listed

SIZE = 40


@given(
    steps=st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 12), st.booleans())),
    probes=st.lists(st.integers(0, SIZE - 1)),
)
def test_the_index_answers_as_a_list_of_bytes_would(steps: list[tuple[int, int, bool]], probes: list[int]) -> None:
    file = FileParts(1, listed("a", SIZE))
    owner: list[Part | None] = [None] * SIZE
    for offset, length, removes in steps:
        if removes:
            part = owner[offset]
            if part is not None:
                file.remove(part)
                owner = [None if other is part else other for other in owner]
        elif not any(owner[offset : offset + length]):
            part = Part(file, offset, min(offset + length, SIZE))
            part.data = memoryview(bytes(length)) if length % 2 else None
            file.add(part)
            owner[part.start : part.end] = [part] * part.size_bytes
    for probe in probes:
        assert file.at(probe) is owner[probe]
        assert file.missing_bytes(probe, SIZE) == sum(part is None or part.data is None for part in owner[probe:])
        if owner[probe] is None:
            start, end = file.gap(probe)
            assert start <= probe < end
            assert not any(owner[start:end])
            assert start == 0 or owner[start - 1] is not None
            assert end == SIZE or owner[end] is not None
    assert list(file) == list(dict.fromkeys(part for part in owner if part is not None))
    assert len(file) == len(set(filter(None, owner)))


def test_a_part_that_was_replaced_at_its_place_cannot_remove_its_successor() -> None:
    file = FileParts(1, listed("a", SIZE))
    old, new = Part(file, 0, 10), Part(file, 0, 20)
    file.add(old)
    file.remove(old)
    file.add(new)
    file.remove(old)
    assert file.at(15) is new
