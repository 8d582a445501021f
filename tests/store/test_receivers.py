import errno
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest
import trio

from fastfuse.store import receivers as module
from fastfuse.store.receivers import Receivers

WORKS = 8
DEADLINE_S = 10.0


def lives(thread: int) -> bool:
    return Path(f"/proc/self/task/{thread}").exists()


async def ended(thread: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while lives(thread):
            await trio.lowlevel.checkpoint()


async def test_works_run_side_by_side_and_each_gets_its_own_count() -> None:
    receivers, all_are_here, counts = Receivers(), threading.Barrier(WORKS), {}

    def work(number: int) -> int:
        all_are_here.wait(DEADLINE_S)
        return number

    async def run(number: int) -> None:
        counts[number] = await receivers.run(partial(work, number))

    async with trio.open_nursery() as nursery:
        for number in range(WORKS):
            nursery.start_soon(run, number)
    assert counts == {number: number for number in range(WORKS)}
    receivers.close()


async def test_what_a_work_raises_is_raised_where_it_is_waited_for_and_its_thread_goes_on() -> None:
    receivers = Receivers()
    with pytest.raises(ZeroDivisionError):
        await receivers.run(lambda: 1 // 0)
    assert await receivers.run(lambda: 1) == 1
    receivers.close()


async def test_threads_are_used_again_and_end_with_close() -> None:
    receivers = Receivers()
    threads = {await receivers.run(threading.get_native_id) for _ in range(WORKS)}
    assert len(threads) == 1
    receivers.close()
    await ended(*threads)


async def test_who_is_cancelled_waits_no_more_and_the_thread_serves_others_when_it_can() -> None:
    receivers, words, threads = Receivers(), SimpleQueue[int](), SimpleQueue[int]()

    def work() -> int:
        threads.put(threading.get_native_id())
        return words.get(timeout=DEADLINE_S)

    with trio.CancelScope() as scope:
        scope.cancel()
        await receivers.run(work)
    assert scope.cancelled_caught
    # One of them is busy.
    other, busy = await receivers.run(threading.get_native_id), threads.get(timeout=DEADLINE_S)
    assert other != busy
    words.put(0)
    # For a moment it still is.
    assert {await receivers.run(threading.get_native_id) for _ in range(2 * WORKS)} <= {other, busy}
    receivers.close()
    await ended(other)
    await ended(busy)


async def test_without_room_for_a_thread_those_that_are_here_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    receivers, words = Receivers(), SimpleQueue[int]()
    assert await receivers.run(lambda: 1) == 1

    def no_room(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "start_new_thread", no_room)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receivers.run, lambda: words.get(timeout=DEADLINE_S))
        nursery.start_soon(receivers.run, lambda: words.get(timeout=DEADLINE_S))
        words.put(0)
        words.put(0)
    receivers.close()
    with pytest.raises(OSError, match="no room") as caught:
        await Receivers().run(lambda: 1)
    assert caught.value.errno == errno.EAGAIN


def test_a_work_that_outlives_its_run_ends_quietly() -> None:
    words, threads = SimpleQueue[int](), SimpleQueue[int]()

    def work() -> int:
        threads.put(threading.get_native_id())
        return words.get(timeout=DEADLINE_S)

    async def leave() -> None:
        with trio.move_on_after(0):
            await Receivers().run(work)

    trio.run(leave)
    words.put(0)
    trio.run(ended, threads.get(timeout=DEADLINE_S))
