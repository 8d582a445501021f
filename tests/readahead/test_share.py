import pytest

from fastfuse.readahead.parts import FileParts
from fastfuse.readahead.readahead_config import ReadaheadConfig, Share
from fastfuse.readahead.share import FairShare, ahead_share
from tests.readahead.readers import MIB, listed


def a_file(inode: int) -> FileParts:
    return FileParts(inode, listed(f"file-{inode}", 100))


def test_each_reader_has_the_same_share_and_an_eighth_is_free_for_the_next() -> None:
    share = FairShare(Share(1200, 12), idle_after_bytes=500)
    assert share.share == Share(1200, 12)
    share.touch(a_file(1), 0)
    assert share.share == Share(1050, 10)
    share.touch(a_file(2), 0)
    assert (share.active, share.share) == (2, Share(525, 5))


def test_among_eight_readers_and_more_a_share_like_theirs_is_free() -> None:
    share = FairShare(Share(1200, 24), idle_after_bytes=500)
    for inode in range(11):
        share.touch(a_file(inode), 0)
    assert share.share == Share(100, 2)


def test_a_file_is_idle_once_others_have_fetched_more_than_the_bound_since_it_was_read() -> None:
    share = FairShare(Share(1000, 12), idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    assert share.touch(second, 500) == []
    assert share.touch(second, 501) == [first]
    assert share.share == Share(875, 10)


def test_a_file_that_is_read_again_in_time_stays_active() -> None:
    share = FairShare(Share(1000, 12), idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    share.touch(second, 100)
    share.touch(first, 200)
    assert share.touch(first, 650) == [second]
    assert share.active == 1


def test_nobody_becomes_idle_in_a_pause_of_everybody() -> None:
    share = FairShare(Share(1000, 12), idle_after_bytes=500)
    files = [a_file(inode) for inode in range(5)]
    for file in files:
        share.touch(file, 0)
    assert all(share.touch(file, 0) == [] for file in files)
    assert share.active == 5


def test_a_closed_file_gives_its_share_back() -> None:
    share = FairShare(Share(1000, 12), idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    share.touch(second, 0)
    share.forget(first)
    share.forget(first)
    assert (share.active, share.share) == (1, Share(875, 10))
    share.forget(second)
    assert (share.active, share.share) == (0, Share(1000, 12))


def test_even_among_many_files_each_may_have_one_part_on_its_way() -> None:
    share = FairShare(Share(1000, 12), idle_after_bytes=500)
    for inode in range(20):
        share.touch(a_file(inode), 0)
    assert share.share == Share(47, 1)


@pytest.mark.parametrize(("connections", "parts"), [(1, 1), (4, 3), (64, 48), (80, 60), (128, 60), (256, 96)])
def test_parts_ahead_of_readers_take_three_quarters_of_80_connections_and_of_half_of_more(
    connections: int, parts: int
) -> None:
    assert ahead_share(ReadaheadConfig(max_parts_in_flight=connections)).parts_in_flight == parts


@pytest.mark.parametrize(("limit_mib", "ahead_mib"), [(64, 48), (128, 96), (448, 416), (1024, 992)])
def test_a_quarter_of_the_memory_is_kept_for_demands_and_32_mib_at_most(limit_mib: int, ahead_mib: int) -> None:
    assert ahead_share(ReadaheadConfig(memory_limit_bytes=limit_mib * MIB)).window_bytes == ahead_mib * MIB
