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
