"""What a worker tells of its reads, second by second."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fastfuse.filesystem import worker
from fastfuse.filesystem.status import Board
from fastfuse.metrics import Counters
from fastfuse.s3.retries import Retries


async def test_the_end_of_failing_reads_is_told_with_the_time_since_the_first(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads for 25 s after the failures, and the mount counts as failing for 10 s of them only."""
    caplog.set_level("INFO")
    counters, operations = Counters(), cast("Any", SimpleNamespace(last_errors=()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._show, Board(), operations, Retries(), counters)
        await trio.sleep(0.5)
        counters.count("fastfuse_errors", 15, "EIO")
        await trio.sleep(30)
        assert not caplog.messages
        counters.count("fastfuse_read_served_bytes", 1)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert caplog.messages == ["reads succeed again after 30 s: 15 × EIO"]


async def test_memory_that_nobody_uses_is_given_back_and_a_worker_with_too_much_of_it_ends(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(used=60, needed=60, trims=0)

    def trim() -> None:
        memory.trims += 1
        memory.used = min(memory.used, memory.needed)

    monkeypatch.setattr(worker, "private_bytes", lambda: memory.used)
    monkeypatch.setattr(worker, "trim_malloc", trim)
    trims = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._watch_memory, 64, 200, Counters(), nursery.cancel_scope)
        await trio.sleep(0.5)
        # Free memory is given back once there is more than the parts may take; in vain only once where all is in use.
        for used, needed in ((124, 60), (125, 60), (140, 140), (140, 140), (141, 100), (130, 130), (150, 100)):
            memory.used, memory.needed = used, needed
            await trio.sleep(1)
            trims.append(memory.trims)
        memory.used, memory.needed = 201, 201
        await trio.sleep(1)
    assert trims == [0, 1, 2, 2, 3, 3, 4]
    assert nursery.cancel_scope.cancelled_caught
