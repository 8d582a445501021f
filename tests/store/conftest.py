from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.store import openssl
from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "no_settings_of_this_machine", "rclone_server", "unlinked"]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(aws_environment: Path) -> None:
    """Every test here sees the test's AWS settings only."""


@pytest.fixture
def unlinked() -> Iterator[None]:
    """As in a Python that OpenSSL is part of, without names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openssl, "_library", lambda: None)
        openssl.is_reachable.cache_clear()
        assert not openssl.is_reachable()
        yield
    openssl.is_reachable.cache_clear()
