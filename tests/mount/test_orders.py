"""Orders that are announced because their files were opened: to whom, how often, and until when."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from fastfuse.errors import StaleInodeError
from fastfuse.metrics import Counters
from fastfuse.mount.order_follower import OrderFollower


class Order:
    """What the engine is told of one order; takes nothing while `gate` is closed."""

    def __init__(self) -> None:
        self.inodes: list[int] = []
        self.gate = trio.Event()
        self.is_spent = False
        self.withdrawn = 0

    async def announce(self, inodes: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        await self.gate.wait()
        self.inodes += inodes

    def withdraw(self) -> None:
        self.withdrawn += 1


class Engine:
    """Orders of `files` files each, beginning with a hundred times the number of the epoch."""

    def __init__(self, files: int, *, is_open: bool) -> None:
        self.files = files
        self.is_open = is_open
        self.orders: list[Order] = []
        self.counters = Counters()
        self.error: Exception | None = None

    async def files_of(self, inode: int) -> npt.NDArray[np.uint64]:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return np.arange(inode * 100, inode * 100 + self.files, dtype="uint64")

    def new_order(self) -> Order:
        order = Order()
        if self.is_open:
            order.gate.set()
        self.orders.append(order)
        return order

    @property
    def taken(self) -> int:
        return self.counters.get("fastfuse_hints", "taken")


@asynccontextmanager
async def following(files: int = 80, *, is_open: bool = True) -> AsyncIterator[tuple[Engine, OrderFollower]]:
    engine = Engine(files, is_open=is_open)
    async with trio.open_nursery() as nursery:
        yield engine, OrderFollower(engine.files_of, engine.new_order, engine.counters, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def opened(follower: OrderFollower, *inodes: int) -> None:
    for inode in inodes:
        follower.opened(inode)
        await trio.testing.wait_all_tasks_blocked()


async def test_the_files_of_an_order_are_announced_in_that_order_and_counted() -> None:
    async with following() as (engine, follower):
        await opened(follower, 3)
        assert engine.orders[0].inodes == list(range(300, 380))
        assert all(type(inode) is int for inode in engine.orders[0].inodes)
        assert engine.taken == 80


async def test_an_order_that_is_opened_again_is_announced_once_until_it_is_spent() -> None:
    async with following() as (engine, follower):
        await opened(follower, 3, 3)
        assert engine.taken == 80
        engine.orders[0].is_spent = True
        await opened(follower, 3)
        assert engine.taken == 160
        assert len(engine.orders) == 1


async def test_an_order_that_waits_for_the_engine_is_not_begun_again() -> None:
    async with following(is_open=False) as (engine, follower):
        await opened(follower, 3)
        engine.orders[0].is_spent = True
        await opened(follower, 3)
        engine.orders[0].gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert engine.orders[0].inodes == list(range(300, 380))


@pytest.mark.parametrize("is_open", [True, False])
async def test_the_orders_of_two_epochs_stand_and_an_older_one_is_withdrawn(is_open: bool) -> None:
    async with following(is_open=is_open) as (engine, follower):
        await opened(follower, 0, 1)
        assert [order.withdrawn for order in engine.orders] == [0, 0]
        await opened(follower, 2)
        assert [order.withdrawn for order in engine.orders] == [1, 0, 0]
        for order in engine.orders:
            order.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        # Nothing more of what was withdrawn.
        assert [len(order.inodes) for order in engine.orders] == [80 if is_open else 0, 80, 80]


async def test_the_order_that_was_opened_last_is_the_last_to_go() -> None:
    async with following() as (engine, follower):
        await opened(follower, 0, 1)
        engine.orders[0].is_spent = True
        await opened(follower, 0, 2)
        assert [order.withdrawn for order in engine.orders] == [0, 1, 0]


async def test_a_file_that_holds_no_order_announces_nothing() -> None:
    async with following(files=0) as (engine, follower):
        await opened(follower, 0)
        assert engine.taken == 0
        assert engine.orders[0].inodes == []


@pytest.mark.parametrize(("error", "logs"), [(StaleInodeError("gone"), 0), (RuntimeError("unforeseen"), 1)])
async def test_an_order_that_cannot_be_had_ends_nothing(
    error: Exception, logs: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with following() as (engine, follower):
        engine.error = error
        await opened(follower, 0)
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == logs
        engine.error = None
        engine.orders[0].is_spent = True
        await opened(follower, 0)
        assert engine.taken == 80
