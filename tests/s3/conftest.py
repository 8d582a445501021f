from pathlib import Path

import pytest

from tests.servers import aws_environment

__all__ = ["aws_environment", "no_settings_of_this_machine"]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(aws_environment: Path) -> None:
    """Show every test here the test's AWS settings only."""
