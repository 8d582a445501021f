from pathlib import Path

import pytest

from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "no_settings_of_this_machine", "rclone_server"]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(aws_environment: Path) -> None:
    """Show every test here the test's AWS settings only."""
