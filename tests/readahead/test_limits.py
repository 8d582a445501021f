"""The limits: which sizes are possible, what is kept for demands, and what each file may have ahead."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.limits import FairShare, Share, ahead_share
from tests.readahead.readers import MIB


@pytest.mark.parametrize(("target_mib", "first_mib"), [(128, 16), (1024, 128), (4096, 256)])
def test_whoever_is_expected_to_read_on_begins_with_an_eighth_of_the_target_or_what_one_reader_can_take(
    target_mib: int, first_mib: int
) -> None:
    config = ReadaheadConfig.within(
        target_mib << 20, part_size_bytes=8 << 20, max_parts_in_flight=64, expects_whole_files=True
    )
    assert config.first_window_bytes == first_mib << 20


def shared_by(readers: Iterable[int], whole: Share) -> FairShare[int]:
    of_all = FairShare[int](whole, idle_after_bytes=500)
    for inode in readers:
        of_all.touch(inode, 0)
    return of_all


@pytest.mark.parametrize(
    ("whole", "readers", "share"),
    [
        (Share(1200, 12), 0, Share(1200, 12)),
        # An eighth is free for the next.
        (Share(1200, 12), 1, Share(1050, 11)),
        (Share(1200, 12), 2, Share(525, 6)),
        # Among eight readers and more a share like theirs is free.
        (Share(1200, 24), 11, Share(100, 2)),
        # Even among many each may have one part on its way.
        (Share(1000, 12), 20, Share(47, 1)),
    ],
)
def test_each_reader_has_the_same_share(whole: Share, readers: int, share: Share) -> None:
    of_all = shared_by(range(readers), whole)
    assert of_all.share == share


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 300)), max_size=40))
def test_a_file_has_a_share_until_it_is_closed_or_others_have_fetched_more_than_the_bound_since_it_was_read(
    steps: list[tuple[bool, int, int]],
) -> None:
    whole, reads, now = Share(1000, 12), dict[int, int](), 0
    of_all = shared_by((), whole)
    for is_read, file, fetched_bytes in steps:
        now += fetched_bytes
        if is_read:
            reads[file] = now
            idle = {other for other, read_at in reads.items() if now - read_at > 500}
            assert set(of_all.touch(file, now)) == idle
        else:
            of_all.forget(file)
            idle = {file}
        reads = {other: read_at for other, read_at in reads.items() if other not in idle}
        assert of_all.share == shared_by(reads, whole).share


@pytest.mark.parametrize(("connections", "parts"), [(1, 1), (4, 3), (64, 48), (80, 60), (128, 60), (256, 96)])
def test_parts_ahead_of_readers_take_three_quarters_of_80_connections_and_of_half_of_more(
    connections: int, parts: int
) -> None:
    assert ahead_share(ReadaheadConfig(max_parts_in_flight=connections)).parts_in_flight == parts


@pytest.mark.parametrize(("limit_mib", "ahead_mib"), [(64, 48), (128, 96), (448, 416), (1024, 992)])
def test_a_quarter_of_the_memory_is_kept_for_demands_and_32_mib_at_most(limit_mib: int, ahead_mib: int) -> None:
    assert ahead_share(ReadaheadConfig(memory_limit_bytes=limit_mib * MIB)).window_bytes == ahead_mib * MIB
