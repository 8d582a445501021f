import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.s3.tls import TlsContext
from tests.s3.tls_peers import AUTHORITY, SERVER
from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "no_settings_of_this_machine", "rclone_server"]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(aws_environment: Path) -> None:
    """Show every test here the test's AWS settings only."""


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(directory: Path) -> str:
    return str(AUTHORITY.write(directory, "authority"))


@pytest.fixture(scope="module")
def server_file(directory: Path) -> Path:
    return SERVER.write(directory, "server")


@pytest.fixture
def context(authority: str) -> TlsContext:
    return TlsContext(authorities=authority)
