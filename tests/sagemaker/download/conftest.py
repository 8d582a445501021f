"""The server of what each module has as `objects`."""

from collections.abc import Iterator

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.download.channels import Source


@pytest.fixture
def s3(objects: MemoryObjects) -> Iterator[Source]:
    with LoopbackServer({"bucket": objects}) as server:
        yield Source(server, objects)
