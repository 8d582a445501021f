from fastfuse.readahead.parts import FileParts
from fastfuse.readahead.share import FairShare
from tests.readahead.readers import listed


def a_file(inode: int) -> FileParts:
    return FileParts(inode, listed(f"file-{inode}", 100))


def test_one_reader_has_everything_and_two_have_half_each() -> None:
    share = FairShare(1000, idle_after_bytes=500)
    assert share.share_bytes == 1000
    share.touch(a_file(1), 0)
    assert share.share_bytes == 1000
    share.touch(a_file(2), 0)
    assert (share.active, share.share_bytes) == (2, 500)


def test_a_file_is_idle_once_others_have_fetched_more_than_the_bound_since_it_was_read() -> None:
    share = FairShare(1000, idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    assert share.touch(second, 500) == []
    assert share.touch(second, 501) == [first]
    assert share.share_bytes == 1000


def test_a_file_that_is_read_again_in_time_stays_active() -> None:
    share = FairShare(1000, idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    share.touch(second, 100)
    share.touch(first, 200)
    assert share.touch(first, 650) == [second]
    assert share.active == 1


def test_nobody_becomes_idle_in_a_pause_of_everybody() -> None:
    share = FairShare(1000, idle_after_bytes=500)
    files = [a_file(inode) for inode in range(5)]
    for file in files:
        share.touch(file, 0)
    assert all(share.touch(file, 0) == [] for file in files)
    assert share.active == 5


def test_a_closed_file_gives_its_share_back() -> None:
    share = FairShare(1000, idle_after_bytes=500)
    first, second = a_file(1), a_file(2)
    share.touch(first, 0)
    share.touch(second, 0)
    share.forget(first)
    share.forget(first)
    assert share.share_bytes == 1000
    share.forget(second)
    assert (share.active, share.share_bytes) == (1, 1000)
