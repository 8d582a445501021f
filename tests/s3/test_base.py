"""How many connections a host is given."""

import pytest

from fastfuse.s3.base import enough_connections


@pytest.mark.parametrize(
    ("cores", "connections"), [(0.5, 128), (2, 128), (4, 128), (5, 160), (15.9, 508), (16, 512), (192, 512)]
)
def test_more_cores_have_more_connections_within_bounds(cores: float, connections: int) -> None:
    assert enough_connections(cores) == connections
