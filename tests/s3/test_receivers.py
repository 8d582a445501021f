import gc
import threading
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest
import trio

from fastfuse.s3 import receivers as module
from fastfuse.s3.receivers import NoThreadError, Receivers

WORKS = 8
DEADLINE_S = 10.0
IDLE_S = 0.01


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


async def test_what_a_work_raises_is_raised_where_it_is_waited_for_and_its_thread_goes_on() -> None:
    receivers = Receivers()
    with pytest.raises(ZeroDivisionError):
        await receivers.run(lambda: 1 // 0)
    assert await receivers.run(lambda: 1) == 1


async def test_threads_are_used_again_and_end_when_there_is_nothing_to_do() -> None:
    receivers = Receivers()
    threads = {await receivers.run(threading.get_native_id) for _ in range(WORKS)}
    assert len(threads) == 1
    receivers = Receivers(IDLE_S)
    for _ in range(3):
        await ended(await receivers.run(threading.get_native_id))


class Part(bytearray):
    """What can be referred to weakly."""


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_is_kept_of_a_work_that_is_done_be_it_failed(fails: bool) -> None:
    receivers, part = Receivers(), Part()

    def work(part: Part) -> int:
        part.append(0)
        return len(part) // (0 if fails else 1)

    gone = weakref.ref(part)
    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            await receivers.run(partial(work, part))
        del part
        assert gone() is None
    finally:
        gc.enable()


async def test_who_is_cancelled_waits_no_more_and_the_thread_serves_others_when_it_can() -> None:
    receivers, words, threads = Receivers(IDLE_S), SimpleQueue[int](), SimpleQueue[int]()

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
    with pytest.raises(NoThreadError, match="no room"):
        await Receivers().run(lambda: 1)


def test_works_that_outlive_their_run_end_quietly_as_do_idle_threads() -> None:
    words, threads = SimpleQueue[int](), SimpleQueue[int]()

    def work() -> int:
        threads.put(threading.get_native_id())
        return words.get(timeout=DEADLINE_S)

    async def leave() -> None:
        receivers = Receivers(IDLE_S)
        threads.put(await receivers.run(threading.get_native_id))
        with trio.move_on_after(0):
            async with trio.open_nursery() as nursery:
                for _ in range(WORKS):
                    nursery.start_soon(receivers.run, work)

    trio.run(leave)
    for _ in range(WORKS):
        words.put(0)
    for _ in range(1 + WORKS):
        trio.run(ended, threads.get(timeout=DEADLINE_S))
