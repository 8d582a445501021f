import errno
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import pytest
import trio
import trio.testing

from fastfuse.s3 import threads
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


@pytest.mark.parametrize(("fails", "is_cancelled"), [(False, False), (True, False), (True, True)])
async def test_nothing_is_kept_of_a_work_that_is_done_be_it_failed(fails: bool, is_cancelled: bool) -> None:
    part, words = Part(), SimpleQueue[int]()

    def work(part: Part) -> int:
        words.get(timeout=DEADLINE_S)
        part.append(0)
        return len(part) // (0 if fails else 1)

    gone = weakref.ref(part)
    gc.disable()
    try:
        with trio.CancelScope() as scope, suppress(ZeroDivisionError):
            if is_cancelled:
                scope.cancel()
            else:
                words.put(0)
            assert await in_thread(partial(work, part)) == 1
            assert not fails
        words.put(0)
        del part
        with trio.fail_after(DEADLINE_S):
            while gone() is not None:  # the thread may be about to drop it
                await trio.lowlevel.checkpoint()
    finally:
        gc.enable()


async def test_the_error_of_a_work_is_raised_though_the_loop_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel had no memory to wake the loop."""

    def tell_twice(token: trio.lowlevel.TrioToken, call: Callable[..., object]) -> None:
        for _ in range(2):
            token.run_sync_soon(call)

    monkeypatch.setattr(threads, "run_soon", tell_twice)
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


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


async def test_a_loop_that_the_kernel_had_no_memory_to_wake_is_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup, failures = trio.lowlevel.current_trio_token()._reentry_queue.wakeup, [errno.ENOBUFS, errno.ENOMEM]
    wake = wakeup.wakeup_thread_and_signal_safe

    def wake_or_fail() -> None:
        if failures:
            raise OSError(failures.pop(), "no memory")
        wake()

    monkeypatch.setattr(wakeup, "wakeup_thread_and_signal_safe", wake_or_fail)
    with trio.fail_after(DEADLINE_S):
        assert await in_thread(lambda: 1) == 1
    assert not failures


async def test_a_work_whose_end_is_told_twice_wakes_its_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(call: Callable[[], None], deliver: Callable[[object], None]) -> None:
        call()
        deliver(None)
        trio.lowlevel.spawn_system_task(tell_again, deliver)

    async def tell_again(deliver: Callable[[object], None]) -> None:
        await trio.testing.wait_all_tasks_blocked()
        deliver(None)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start)
    assert await in_thread(lambda: 1) == 1
    await trio.testing.wait_all_tasks_blocked()


def test_a_work_that_outlives_its_run_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Callable[[], None], Callable[[object], None]]] = []

    async def leave() -> None:
        with trio.move_on_after(0):
            await in_thread(lambda: 1)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", lambda *both: started.append(both))
    trio.run(leave)
    [(call, deliver)] = started
    call()
    deliver(None)
