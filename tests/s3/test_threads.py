import gc
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import pytest
import trio

from fastfuse.s3.threads import NoThreadError, in_thread

# More than `trio.to_thread` has threads for.
WORKS = 50
DEADLINE_S = 10.0


async def test_works_run_side_by_side_and_each_gets_its_own_result() -> None:
    all_are_here, results = threading.Barrier(WORKS), {}

    def work(number: int) -> int:
        all_are_here.wait(DEADLINE_S)
        return number

    async def run(number: int) -> None:
        results[number] = await in_thread(partial(work, number))

    async with trio.open_nursery() as nursery:
        for number in range(WORKS):
            nursery.start_soon(run, number)
    assert results == {number: number for number in range(WORKS)}


class Part(bytearray):
    """What can be referred to weakly."""


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_is_kept_of_a_work_that_is_done_be_it_failed(fails: bool) -> None:
    part = Part()

    def work(part: Part) -> int:
        part.append(0)
        return len(part) // (0 if fails else 1)

    gone = weakref.ref(part)
    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            assert await in_thread(partial(work, part)) == 1
            assert not fails
        del part
        with trio.fail_after(DEADLINE_S):
            while gone() is not None:  # the thread may be about to drop it
                await trio.lowlevel.checkpoint()
    finally:
        gc.enable()


async def test_who_is_cancelled_waits_no_more_and_the_work_is_done_all_the_same() -> None:
    began, words = SimpleQueue[None](), SimpleQueue[int]()

    def work() -> int:
        began.put(None)
        return words.get(timeout=DEADLINE_S)

    with trio.CancelScope() as scope:
        scope.cancel()
        await in_thread(work)
    assert scope.cancelled_caught
    await in_thread(partial(began.get, timeout=DEADLINE_S))
    words.put(0)
    # The work ends now, and wakes nobody.
    assert await in_thread(lambda: 1) == 1


async def test_without_room_for_a_thread_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", no_room)
    with pytest.raises(NoThreadError, match="no room"):
        await in_thread(pytest.fail)


def test_a_work_that_outlives_its_run_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    words, threads = SimpleQueue[int](), SimpleQueue[threading.Thread]()

    def work() -> int:
        threads.put(threading.current_thread())
        return words.get(timeout=DEADLINE_S)

    async def leave() -> None:
        with trio.move_on_after(0):
            await in_thread(work)

    async def wait_for(thread: threading.Thread) -> None:
        # It is given other work only once it is through with what came before. Threads that are free later than it
        # would be given all of it, so they are kept busy.
        token, is_found = trio.lowlevel.current_trio_token(), threading.Event()
        sending, receiving = trio.open_memory_channel[bool](1)

        def look() -> None:
            is_it = threading.current_thread() is thread
            token.run_sync_soon(sending.send_nowait, is_it)
            if not is_it:
                is_found.wait(DEADLINE_S)

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                try:
                    nursery.start_soon(in_thread, look)
                    while not await receiving.receive():
                        nursery.start_soon(in_thread, look)
                finally:
                    is_found.set()

    trio.run(leave)
    words.put(0)
    trio.run(wait_for, threads.get(timeout=DEADLINE_S))
    assert capfd.readouterr() == ("", "")
