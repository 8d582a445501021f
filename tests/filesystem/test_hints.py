"""Orders as the worker takes them: which inodes arrive, who waits, what a broken client costs."""

import logging
import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from fastfuse.filesystem.processes.sockets import MAX_PATH_BYTES, REFUSED, SERVED, TAKEN
from fastfuse.filesystem.talking import hint_taker as hints
from fastfuse.filesystem.talking.hint_taker import HintTaker, listen_for_hints
from fastfuse.index.inodes.table import InodeTable
from fastfuse.metrics import Counters
from tests.filesystem.waiting import PATIENCE_S
from tests.index.indexes import table_of

DEVICE = f"test-hints:{os.getpid()}"


class Order:
    """What the engine is told of one order; takes nothing while `gate` is closed."""

    def __init__(self) -> None:
        self.inodes: list[int] = []
        self.batches: list[int] = []
        self.gate = trio.Event()
        self.asked = trio.Event()
        self.withdrawn = trio.Event()
        self.error: Exception | None = None

    async def announce(self, inodes: Sequence[int]) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.inodes += inodes
        self.batches.append(len(inodes))

    def withdraw(self) -> None:
        self.withdrawn.set()


class Worker:
    """A taker of hints and what reaches its engine."""

    def __init__(self, table: InodeTable, *, takes_all: bool) -> None:
        self.table = table
        self.counters = Counters()
        self.orders: list[Order] = []
        self.is_open = True
        self.listener = listen_for_hints(DEVICE)
        self.taker = HintTaker(
            lambda: self.table, cast(Any, self.order), self.counters,
            trusted_uids=frozenset({os.geteuid()}), takes_all=takes_all,
        )  # fmt: skip

    def order(self) -> Order:
        order = Order()
        if self.is_open:
            order.gate.set()
        self.orders.append(order)
        return order

    def counted(self) -> tuple[int, int]:
        return self.counters.get("fastfuse_hints", "taken"), self.counters.get("fastfuse_hints", "unknown")

    def names(self, order: Order) -> list[str]:
        return [self.table.key(inode) for inode in order.inodes]

    async def connect(self) -> trio.SocketStream:
        connection = trio.socket.socket(socket.AF_UNIX)
        await connection.connect(self.listener.getsockname())
        return trio.SocketStream(connection)

    async def served(self) -> trio.SocketStream:
        client = await self.connect()
        assert await client.receive_some(1) == SERVED
        return client


@asynccontextmanager
async def working(*keys: str, takes_all: bool = False) -> AsyncIterator[Worker]:
    worker = Worker(table_of(keys), takes_all=takes_all)
    with worker.listener, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.taker.run, worker.listener)
            yield worker
            nursery.cancel_scope.cancel()


async def until(is_met: Callable[[], bool]) -> None:
    """Let the other tasks go on until it is."""
    while not is_met():
        await trio.testing.wait_all_tasks_blocked(0.001)


async def hand_over(worker: Worker, message: bytes) -> Order:
    """Send a whole order and see it taken."""
    async with await worker.served() as client:
        await client.send_all(message)
        await client.send_eof()
        assert await client.receive_some(1) == TAKEN
        return worker.orders[-1]


async def test_paths_arrive_as_inodes_in_their_order_and_are_read_as_the_kernel_would() -> None:
    async with working("a", "d/b", "d/e/c") as worker:
        order = await hand_over(worker, b"d/e/c\0a\0d/b\0a\0./d//e/./c\0")
        assert worker.names(order) == ["d/e/c", "a", "d/b", "a", "d/e/c"]
        assert worker.counted() == (5, 0)


@pytest.mark.parametrize(
    "path", [b"", b"absent", b"absent/a", b"d", b"d/", b"d/absent", b"d/b/", b"d/b/c", b"a/b", b"../a", b"d/../a", b"/"]
)
async def test_what_is_no_file_is_counted_and_passed_over(path: bytes) -> None:
    async with working("a", "d/b") as worker:
        order = await hand_over(worker, b"a\0" + path + b"\0d/b\0")
        assert worker.names(order) == ["a", "d/b"]
        assert worker.counted() == (2, 1)


async def test_a_path_is_looked_up_in_the_table_of_the_moment() -> None:
    async with working("d/a") as worker, await worker.served() as client:
        await client.send_all(b"d/a\0")
        await until(lambda: worker.counted() == (1, 0))
        old = weakref.ref(worker.table)
        worker.table = table_of(["b", "c", "d/a"])
        assert old() is None
        await client.send_all(b"d/a\0")
        await until(lambda: worker.counted() == (2, 0))
        assert worker.orders[0].inodes[1] == worker.table.lookup(worker.table.lookup(1, b"d") or 0, b"a")
        assert worker.orders[0].inodes[0] != worker.orders[0].inodes[1]


async def test_an_engine_that_has_enough_makes_the_sender_wait() -> None:
    async with working("a") as worker:
        worker.is_open = False
        async with await worker.served() as client:
            await client.send_all(b"a\0")
            await worker.orders[0].asked.wait()
            sent_bytes = 2
            with socket.socket(fileno=os.dup(client.socket.fileno())) as same, suppress(BlockingIOError):
                while sent_bytes < 1_000_000:
                    sent_bytes += same.send((b"a\0" * 1000)[sent_bytes % 2 :], socket.MSG_DONTWAIT)
            assert sent_bytes < 1_000_000
            assert worker.counted() == (0, 0)
            worker.orders[0].gate.set()
            await until(lambda: worker.counted()[0] == sent_bytes // 2)


async def test_the_loop_takes_requests_after_each_batch_however_many_announce_at_once() -> None:
    looked_up = [0]

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            looked_up.append(0)

    def look_up(_: bytes) -> int:
        looked_up[-1] += 1
        return 1

    async with working("a") as worker, AsyncExitStack() as clients:
        worker.taker._file = look_up  # type: ignore[assignment]
        connected = [await clients.enter_async_context(await worker.served()) for _ in range(8)]
        trio.lowlevel.add_instrument(Turns())
        for client in connected:  # before the loop's next turn
            os.write(client.socket.fileno(), b"a\0" * 2 * hints._BATCH_PATHS)
        await until(lambda: worker.counted()[0] == 16 * hints._BATCH_PATHS)
        assert max(looked_up) == hints._BATCH_PATHS


async def test_an_order_is_withdrawn_when_its_sender_hangs_up_although_the_engine_lets_it_wait() -> None:
    async with working("a") as worker:
        worker.is_open = False
        client = await worker.served()
        await client.send_all(b"a\0" * 20_000)
        await worker.orders[0].asked.wait()
        assert not worker.orders[0].withdrawn.is_set()
        await client.aclose()
        await worker.orders[0].withdrawn.wait()


async def test_of_orders_that_were_taken_whole_the_last_one_stands_until_there_is_another() -> None:
    async with working("a") as worker, await worker.served() as early, await worker.served() as late:
        for client in (early, late):
            await client.send_all(b"a\0")
            await client.send_eof()
            assert await client.receive_some(1) == TAKEN
            await trio.testing.wait_all_tasks_blocked()
        assert [order.withdrawn.is_set() for order in worker.orders] == [True, False]
        await hand_over(worker, b"b\0")  # which names no file
        assert not worker.orders[1].withdrawn.is_set()
        async with await worker.served() as other:
            await other.send_all(b"a\0")
            await worker.orders[1].withdrawn.wait()


async def test_of_orders_that_end_one_after_the_other_only_the_last_one_stands() -> None:
    async with working("a") as worker, await worker.served() as early, await worker.served() as late:
        for client in (early, late):
            await client.send_all(b"a\0")
        await until(lambda: all(order.inodes for order in worker.orders))
        for client in (early, late):
            await client.send_eof()
            assert await client.receive_some(1) == TAKEN
            await trio.testing.wait_all_tasks_blocked()
        assert [order.withdrawn.is_set() for order in worker.orders] == [True, False]


@pytest.mark.parametrize("message", [b"a\0a", b"a\0" + b"x" * (MAX_PATH_BYTES + 1), b"x" * (1 << 20)])
async def test_nonsense_ends_its_connection_and_no_other(message: bytes) -> None:
    async with working("a") as worker, await worker.served() as other, await worker.served() as client:
        with suppress(trio.BrokenResourceError):  # what is not received of it is thrown away
            await client.send_all(message)
            await client.send_eof()
            assert await client.receive_some(1) == b""
        await worker.orders[1].withdrawn.wait()
        await other.send_all(b"a\0")
        await until(lambda: worker.names(worker.orders[0]) == ["a"])
        assert not worker.orders[0].withdrawn.is_set()


async def test_paths_that_are_no_files_are_told_once_and_noted_once_a_batch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "announced paths are no files of the mount, such as 'mnt/a'. "
    async with working("a") as worker:
        noted = Mock(wraps=worker.taker._failures.tell)
        monkeypatch.setattr(worker.taker._failures, "tell", noted)
        async with await worker.served() as client:
            await client.send_all(b"a\0mnt/a\0")
            await until(lambda: told in caplog.text)
        await hand_over(worker, b"a\0mnt/a\0mnt/b\0" * hints._BATCH_PATHS)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert noted.call_count == 1 + 3
    assert lines == [f"{told}Announce paths below the mountpoint, or relative to it."]


async def test_an_engine_that_fails_ends_the_order_and_not_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async with working("a") as worker, await worker.served() as other, await worker.served() as client:
        worker.orders[1].error = RuntimeError("as if it was broken")
        await client.send_all(b"a\0")
        assert await client.receive_some(1) == b""
        await other.send_all(b"a\0")
        await until(lambda: worker.names(worker.orders[0]) == ["a"])
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message.startswith("an announced order failed for an unforeseen reason")


async def test_one_connection_too_many_waits_until_another_ends() -> None:
    async with working("a") as worker:
        clients = [await worker.served() for _ in range(hints._MAX_CONNECTIONS)]
        late = await worker.connect()
        await late.send_all(b"a\0")
        await trio.testing.wait_all_tasks_blocked()
        assert len(worker.orders) == hints._MAX_CONNECTIONS
        await clients[3].aclose()
        assert await late.receive_some(1) == SERVED
        await until(lambda: worker.counted() == (1, 0))
        for client in [*clients, late]:
            await client.aclose()


@pytest.fixture
def uids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The users of the next connections, whoever connects; those after them are this user's."""
    following: list[int] = []
    monkeypatch.setattr(hints, "peer_uid", lambda _: following.pop(0) if following else os.geteuid())
    return following


async def test_the_order_of_a_user_stands_whatever_others_announce(uids: list[int]) -> None:
    uids += [54321, 12345, 54321]
    async with working("a", takes_all=True) as worker:
        first, other, second, ours = [await hand_over(worker, b"a\0") for _ in range(4)]
        assert [order.withdrawn.is_set() for order in (first, other, second, ours)] == [True, False, False, False]


async def test_of_many_strangers_only_some_have_an_order_that_stands(uids: list[int]) -> None:
    uids += range(10_000, 10_000 + hints._MAX_CONNECTIONS)
    async with working("a", takes_all=True) as worker:
        for _ in range(hints._MAX_CONNECTIONS):
            await hand_over(worker, b"a\0")
        uids.append(9999)
        late, ours = await hand_over(worker, b"a\0"), await hand_over(worker, b"a\0")
        await late.withdrawn.wait()
        assert not any(order.withdrawn.is_set() for order in worker.orders if order not in (late, ours))
        assert not ours.withdrawn.is_set()


async def test_a_stranger_has_few_places(uids: list[int]) -> None:
    uids += [12345] * (hints._MAX_OF_STRANGER + 1)
    async with working("a", takes_all=True) as worker:
        clients = [await worker.served() for _ in range(hints._MAX_OF_STRANGER)]
        async with await worker.connect() as late:
            assert await late.receive_some(1) == REFUSED
        await hand_over(worker, b"a\0")
        await clients.pop(0).aclose()
        await worker.orders[0].withdrawn.wait()
        uids.append(12345)
        for client in (*clients, await worker.served()):
            await client.aclose()


async def test_strangers_leave_places_to_the_user_who_mounted(uids: list[int]) -> None:
    async with working("a", takes_all=True) as worker:
        clients = []
        for uid in range(12345, 12349):
            for _ in range(hints._MAX_OF_STRANGER):
                uids.append(uid)
                clients.append(client := await worker.connect())
                is_served = len(clients) <= hints._MAX_OF_STRANGERS
                assert await client.receive_some(1) == (SERVED if is_served else REFUSED)
        await hand_over(worker, b"a\0")
        for client in clients:
            await client.aclose()


async def test_a_client_that_is_gone_before_it_is_greeted_takes_no_place() -> None:
    async with working("a") as worker:
        for _ in range(2 * hints._MAX_CONNECTIONS):
            await (await worker.connect()).aclose()
        assert worker.names(await hand_over(worker, b"a\0")) == ["a"]


async def test_an_accept_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_ACCEPT_PAUSE_S", 0.0)
    accept = trio.socket.SocketType.accept
    errors = [OSError("too many open files")]
    async with working("a") as worker:
        kind = type(trio.socket.from_stdlib_socket(worker.listener))

        async def failing(self: trio.socket.SocketType) -> object:
            if errors:
                raise errors.pop()
            return await accept(self)

        accept = kind.accept
        monkeypatch.setattr(kind, "accept", failing)
        assert worker.names(await hand_over(worker, b"a\0")) == ["a"]
    assert not errors


async def test_unknown_names_cost_their_sender_time(mock_clock: trio.testing.MockClock) -> None:
    async with working("a") as worker, await worker.served() as client:
        await client.send_all(b"x\0" * hints._BATCH_PATHS)
        while worker.counted() != (0, hints._BATCH_PATHS):
            await trio.testing.wait_all_tasks_blocked()
        await client.send_all(b"a\0")
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert worker.counted()[0] == 0
        mock_clock.jump(hints._BATCH_PATHS * hints._UNKNOWN_PAUSE_S)
        while worker.counted()[0] != 1:
            await trio.testing.wait_all_tasks_blocked()
