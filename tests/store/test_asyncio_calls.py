"""Calls for asyncio without its loop, made by a client that completes them from a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from fastfuse.store.asyncio_calls import call

Future = asyncio.Future[Any]


class Client:
    """Uses of a loop what pyo3-async-runtimes does."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.future: Future
        self.heard_of: list[bool] = []

    def ask(self) -> Future:
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        self.future.add_done_callback(lambda future: self.heard_of.append(future.cancelled()))
        return self.future

    def answer(self, complete: Callable[[Future], None]) -> None:
        """In a thread, as the answer comes."""

        def complete_unless_cancelled(future: Future) -> None:
            if not future.cancelled():
                complete(future)

        arguments = (complete_unless_cancelled, self.future)
        thread = threading.Thread(target=self.loop.call_soon_threadsafe, args=arguments, kwargs={"context": None})
        thread.start()
        thread.join()


async def test_the_result_is_what_the_client_sets_from_its_thread() -> None:
    client, results = Client(), []

    async def ask() -> None:
        results.append(await call(client.ask))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert results == []
        client.answer(lambda future: future.set_result(17))
    assert results == [17]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


async def test_a_result_that_is_there_at_once_is_not_waited_for() -> None:
    def ask() -> Future:
        future = asyncio.get_running_loop().create_future()
        future.set_result("now")
        return future

    assert await call(ask) == "now"


async def test_an_error_is_raised_whatever_its_kind() -> None:
    class Panic(BaseException):
        pass

    client = Client()

    async def ask() -> None:
        with pytest.raises(Panic):
            await call(client.ask)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        client.answer(lambda future: future.set_exception(Panic()))


async def test_a_call_that_is_refused_leaves_no_loop_behind() -> None:
    def ask() -> Future:
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        await call(ask)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


async def test_cancelling_tells_the_client_once_and_a_late_answer_nobody() -> None:
    client = Client()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, client.ask)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert client.heard_of == [True]
    client.answer(lambda future: future.set_result("late"))
    client.future.set_result("later still, and without a look at the future")
    await trio.testing.wait_all_tasks_blocked()
    assert client.heard_of == [True]


async def test_what_is_no_future_of_the_loop_is_refused_and_not_waited_for() -> None:
    async def ask() -> None:
        await trio.lowlevel.checkpoint()

    asked = ask()
    with pytest.raises(TypeError, match="made no future of the running loop"):
        await call(lambda: asked)
    asked.close()


def test_an_answer_after_the_run_has_ended_is_lost_without_an_error() -> None:
    client = Client()

    async def give_up() -> None:
        with trio.move_on_after(0):
            await call(client.ask)

    trio.run(give_up)
    client.loop.call_soon_threadsafe(client.future.set_result, "late")
