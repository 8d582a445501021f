"""Fixtures of the tests with real jobs: the server of what a module has as OBJECTS; nothing may be left behind."""

from collections.abc import Iterator
from functools import partial

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET, Run, running
from tests.semantics.leftovers import nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[LoopbackServer]:
    with LoopbackServer({BUCKET: MemoryObjects(request.module.OBJECTS)}) as running_server:
        yield running_server


@pytest.fixture
def run(server: LoopbackServer) -> Run:
    return partial(running, server.endpoint_url)
