from typing import Any

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.readahead import ReadaheadConfig
from tests.readahead.readers import MIB


def test_the_defaults_are_valid_and_leave_room_beside_one_whole_window() -> None:
    config = ReadaheadConfig()
    assert config.memory_limit_bytes >= 2 * config.max_window_bytes


def test_a_limit_of_64_mib_is_enough() -> None:
    assert ReadaheadConfig(memory_limit_bytes=64 * MIB).part_size_bytes == 8 * MIB


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
