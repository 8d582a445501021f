"""The server of what each module has as `objects`."""

from collections.abc import Iterator

import pytest

from fastfuse.testing import LoopbackServer, MemoryObjects


@pytest.fixture
def server(objects: MemoryObjects) -> Iterator[LoopbackServer]:
    with LoopbackServer({"bucket": objects}) as server:
        yield server
