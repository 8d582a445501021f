"""Fixtures for every test."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from bench.s3server import LoopbackServer, MemoryObjects
from tests.servers import aws_environment, moto_server, rclone_server

__all__ = ["aws_environment", "moto_server", "rclone_server"]

# How long an example takes, to be made or to be tried, is no property of the code on a machine that others use, too.
settings.register_profile("fastfuse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fastfuse")

# A shell starts what it runs in the background with two of these ignored, and nohup the third; children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[LoopbackServer]:
    """A server of the bucket ``bucket`` with the `OBJECTS` of the test's module."""
    with LoopbackServer({"bucket": MemoryObjects(request.module.OBJECTS)}) as server:
        yield server


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return what ``-n auto`` stands for: four workers on two cores, as tests also wait for deadlines and processes."""
    return max(4, len(os.sched_getaffinity(0)))
