"""A connection is closed, whoever it is that gives it up, and when."""

import socket
import threading

import pytest
import trio

from fastfuse.store.connection import connect


async def test_a_connection_that_is_made_after_its_cancellation_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    begun, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def create_connection(*_: object) -> socket.socket:
        token.run_sync_soon(begun.set)
        go_on.wait()
        return ours

    monkeypatch.setattr(socket, "create_connection", create_connection)
    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:

        async def make() -> None:
            await connect(("127.0.0.1", 1), timeout_s=1.0, stall_s=1.0, threads=limiter)

        nursery.start_soon(make)
        await begun.wait()
        nursery.cancel_scope.cancel()
    go_on.set()
    theirs.setblocking(True)
    assert await trio.to_thread.run_sync(theirs.recv, 1) == b""  # the other end is closed
    theirs.close()
