"""The lock and the wait that pyfuse3 gets in the place of trio's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import MountError
from fastfuse.filesystem import loop
from fastfuse.filesystem.fuse import pyfuse3
from fastfuse.filesystem.loop import RequestLock, RequestWait
from fastfuse.filesystem.mount_places import Place
from fastfuse.filesystem.replies import LargeReplies
from fastfuse.filesystem.session import InitialisedOperations, Session


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def endless_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TURN_S", 3600.0)


@pytest.mark.usefixtures("endless_turns")
async def test_what_is_there_is_not_waited_for(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"x")
    wait = RequestWait(LargeReplies())
    await wait.wait_readable(reading)  # begins the turn
    with trio.testing.assert_no_checkpoints():
        await wait.wait_readable(reading)


async def test_when_its_turn_is_over_other_tasks_go_on(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TURN_S", 0.0)
    reading, writing = pipe
    os.write(writing, b"x")
    wait = RequestWait(LargeReplies())
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            await wait.wait_readable(reading)


@pytest.mark.usefixtures("endless_turns")
async def test_another_descriptor_is_waited_for_itself(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"x")
    wait = RequestWait(LargeReplies())
    await wait.wait_readable(reading)
    other_reading, other_writing = os.pipe()
    with trio.move_on_after(0) as scope:
        await wait.wait_readable(other_reading)
    assert scope.cancelled_caught
    os.close(other_reading)
    os.close(other_writing)


async def test_the_lock_is_taken_and_freed_without_a_checkpoint_while_others_wait_for_it() -> None:
    lock = RequestLock()
    got: list[str] = []

    async def wait() -> None:
        async with lock:
            got.append("waiter")

    async with trio.open_nursery() as nursery:
        async with lock:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
        with trio.testing.assert_no_checkpoints():
            async with lock:
                got.append("first")
    assert got == ["first", "waiter"]


async def test_only_one_holds_the_lock_and_each_gets_it() -> None:
    lock = RequestLock()
    holding = most = rounds = 0

    async def take_often() -> None:
        nonlocal holding, most, rounds
        for _ in range(5):
            async with lock:
                holding += 1
                most = max(most, holding)
                await trio.lowlevel.checkpoint()
                holding -= 1
                rounds += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(take_often)
    assert (most, rounds) == (1, 25)


async def test_who_gave_up_waiting_is_not_woken_and_the_next_one_is() -> None:
    lock = RequestLock()
    got = 0

    async def wait() -> None:
        nonlocal got
        async with lock:
            got += 1

    async with trio.open_nursery() as nursery, lock:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as given_up:
            given_up.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
    assert got == 1


@pytest.mark.fuse
def test_the_lock_that_serves_init_is_the_one_that_workers_inherit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []

    def init(*_: object) -> None:
        seen.append(pyfuse3.trio.Lock)  # type: ignore[attr-defined]
        raise RuntimeError("far enough")

    monkeypatch.setattr(pyfuse3, "trio", trio, raising=False)
    monkeypatch.setattr(pyfuse3, "init", init)
    with pytest.raises(MountError):
        Session.mount(InitialisedOperations(), Place(tmp_path), source="s3://b", allow_other=False)
    assert seen == [RequestLock]
