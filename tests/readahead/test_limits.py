"""The limits: which sizes are possible, what is kept for demands, and what each file may have ahead."""

from typing import Any

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.limits import FairShare, Share, ahead_share
from tests.readahead.readers import MIB


def test_the_defaults_are_valid_and_leave_room_beside_one_whole_window() -> None:
    config = ReadaheadConfig()
    assert config.memory_limit_bytes >= 2 * config.max_window_bytes


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"part_size_bytes": 0}, "part_size_bytes"),
        ({"part_size_bytes": 8 * MIB + 1}, "part_size_bytes"),
        ({"first_part_bytes": 100}, "first_part_bytes"),
        ({"first_part_bytes": 16 * MIB}, "first_part_bytes"),
        ({"memory_limit_bytes": 16 * MIB - 1}, "two parts"),
        ({"max_window_bytes": -1}, "max_window_bytes"),
        ({"max_parts_in_flight": 0}, "max_parts_in_flight"),
    ],
)
def test_impossible_sizes_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        ReadaheadConfig(**fields)
    assert caught.value.hint


@pytest.mark.parametrize(("target_mib", "first_mib"), [(128, 16), (1024, 128), (4096, 256)])
def test_whoever_is_expected_to_read_on_begins_with_an_eighth_of_the_target_or_what_one_reader_can_take(
    target_mib: int, first_mib: int
) -> None:
    config = ReadaheadConfig.within(
        target_mib << 20, part_size_bytes=8 << 20, max_parts_in_flight=64, expects_whole_files=True
    )
    assert config.first_window_bytes == first_mib << 20


@pytest.fixture
def share() -> FairShare[int]:
    return FairShare(Share(1000, 12), idle_after_bytes=500)


@pytest.mark.parametrize(
    ("whole", "readers", "share"),
    [
        (Share(1200, 12), 0, Share(1200, 12)),
        # An eighth is free for the next.
        (Share(1200, 12), 1, Share(1050, 10)),
        (Share(1200, 12), 2, Share(525, 5)),
        # Among eight readers and more a share like theirs is free.
        (Share(1200, 24), 11, Share(100, 2)),
        # Even among many each may have one part on its way.
        (Share(1000, 12), 20, Share(47, 1)),
    ],
)
def test_each_reader_has_the_same_share(whole: Share, readers: int, share: Share) -> None:
    of_all = FairShare[int](whole, idle_after_bytes=500)
    for inode in range(readers):
        of_all.touch(inode, 0)
    assert (of_all.active, of_all.share) == (readers, share)


def test_a_file_is_idle_once_others_have_fetched_more_than_the_bound(share: FairShare[int]) -> None:
    share.touch(1, 0)
    assert share.touch(2, 500) == []
    assert share.touch(2, 501) == [1]
    assert share.share == Share(875, 10)


def test_a_file_that_is_read_again_in_time_stays_active(share: FairShare[int]) -> None:
    share.touch(1, 0)
    share.touch(2, 100)
    share.touch(1, 200)
    assert share.touch(1, 650) == [2]
    assert share.active == 1


def test_nobody_becomes_idle_in_a_pause_of_everybody(share: FairShare[int]) -> None:
    for file in range(5):
        share.touch(file, 0)
    assert all(share.touch(file, 0) == [] for file in range(5))
    assert share.active == 5


def test_a_closed_file_gives_its_share_back(share: FairShare[int]) -> None:
    share.touch(1, 0)
    share.touch(2, 0)
    share.forget(1)
    share.forget(1)
    assert (share.active, share.share) == (1, Share(875, 10))
    share.forget(2)
    assert (share.active, share.share) == (0, Share(1000, 12))


@pytest.mark.parametrize(("connections", "parts"), [(1, 1), (4, 3), (64, 48), (80, 60), (128, 60), (256, 96)])
def test_parts_ahead_of_readers_take_three_quarters_of_80_connections_and_of_half_of_more(
    connections: int, parts: int
) -> None:
    assert ahead_share(ReadaheadConfig(max_parts_in_flight=connections)).parts_in_flight == parts


@pytest.mark.parametrize(("limit_mib", "ahead_mib"), [(64, 48), (128, 96), (448, 416), (1024, 992)])
def test_a_quarter_of_the_memory_is_kept_for_demands_and_32_mib_at_most(limit_mib: int, ahead_mib: int) -> None:
    assert ahead_share(ReadaheadConfig(memory_limit_bytes=limit_mib * MIB)).window_bytes == ahead_mib * MIB
