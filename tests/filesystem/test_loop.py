"""The lock and the wait that pyfuse3 gets in the place of trio's."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import MountError
from fastfuse.filesystem import loop
from fastfuse.filesystem.fuse import pyfuse3
from fastfuse.filesystem.loop import Readable, RequestWait, _NoLock
from fastfuse.filesystem.mount_places import Place
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
    wait = RequestWait()
    await wait.wait_readable(reading)  # begins the turn
    with trio.testing.assert_no_checkpoints():
        await wait.wait_readable(reading)


async def test_when_its_turn_is_over_other_tasks_go_on(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TURN_S", 0.0)
    reading, writing = pipe
    os.write(writing, b"x")
    wait = RequestWait()
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            await wait.wait_readable(reading)


@pytest.mark.usefixtures("endless_turns")
async def test_another_descriptor_is_waited_for_itself(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"x")
    wait = RequestWait()
    await wait.wait_readable(reading)
    other_reading, other_writing = os.pipe()
    with trio.move_on_after(0) as scope:
        await wait.wait_readable(other_reading)
    assert scope.cancelled_caught
    os.close(other_reading)
    os.close(other_writing)


async def test_the_lock_takes_no_turn() -> None:
    with trio.testing.assert_no_checkpoints():
        async with _NoLock():
            pass


def test_readable_says_whether_something_came_or_the_other_end_is_gone() -> None:
    first, second = socket.socketpair()
    with first:
        with second:
            is_readable = Readable(first.fileno())
            assert not is_readable()
            second.send(b"x")
            assert is_readable()
            first.recv(1)
            assert not is_readable()
        assert is_readable()
    # As poll(2) says of what is no descriptor.
    assert not Readable(-1)()


@pytest.mark.fuse
def test_the_lock_that_serves_init_is_what_workers_inherit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def init(*_: object) -> None:
        seen.append(pyfuse3.trio.Lock)  # type: ignore[attr-defined]
        raise RuntimeError("far enough")

    monkeypatch.setattr(pyfuse3, "trio", trio, raising=False)
    monkeypatch.setattr(pyfuse3, "init", init)
    with pytest.raises(MountError):
        Session.mount(InitialisedOperations(), Place(tmp_path), source="s3://b", allow_other=False)
    assert seen == [_NoLock]
